//! The begin of connections, by hand and apart from the library's own code, as a reader of the sources knows
//! the protocols.
//!
//! | port | first | then | then | at last |
//! | --- | --- | --- | --- | --- |
//! | control star, scheduler, server | client: 124 bytes | it: 40, random | client: 45, a proof | it: 41; frames |
//! | another rank's | nothing is ever said: it only has to be open | | | |

use std::io::{self, Read, Write};
use std::net::TcpStream;

use hmac_sha256::HMAC;

/// The protocol of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaks {
    /// Rank 0's.
    ControlStar,
    /// A scheduler's or a server's.
    Servers,
    /// Another rank's. It shows rank 0 that its process lives, and accepts no connection.
    Nothing,
}

/// The lengths of what the two ends of a connection say before frames.
pub(crate) const HELLO: usize = 124;
pub(crate) const CHALLENGE: usize = 40;
pub(crate) const PROOF: usize = 45;
pub(crate) const VERDICT: usize = 41;

/// The first bytes of a client and of a server. The next byte says whether there is a secret.
pub(crate) const CLIENT_MAGIC: &[u8; 7] = b"RPULLC\x03";
pub(crate) const SERVER_MAGIC: &[u8; 7] = b"RPULLS\x03";
/// A server's verdict on a wrong proof: a code, a number, and no proof of its own.
pub(crate) const WRONG_SECRET: [u8; VERDICT] = {
    let mut verdict = [0; VERDICT];
    verdict[0] = 1;
    verdict
};

/// The name that a stranger gives.
#[derive(Debug, Clone, Default)]
pub(crate) struct GivenName {
    /// The name that the node gives itself, and its session.
    pub(crate) identity: Vec<u8>,
    /// The name that he asks for.
    pub(crate) wanted: Vec<u8>,
    pub(crate) session: [u8; 16],
    /// True if he goes on with a connection that there was.
    pub(crate) goes_on: bool,
    /// The secret that he has; `None` if he says that he has none.
    pub(crate) secret: Option<Vec<u8>>,
}

impl Speaks {
    /// The lengths of all that is said, frames' prefixes among it.
    pub(crate) fn lengths(self) -> &'static [usize] {
        match self {
            Speaks::Nothing => &[1, HELLO],
            _ => &[1, 8, 24, CHALLENGE, PROOF, HELLO, HELLO + PROOF, 4096],
        }
    }

    /// After this many bytes of garbage the other end knows that it is no greeting, and need not wait for
    /// more.
    pub(crate) fn enough(self) -> usize {
        match self {
            Speaks::Nothing => usize::MAX,
            _ => 8,
        }
    }

    /// Begins as a node of the job does, as far as the other end lets it: what that said last.
    pub(crate) fn greet(self, stream: &TcpStream, name: &GivenName) -> io::Result<Vec<u8>> {
        let mut stream = stream;
        let hello = hello(name);
        stream.write_all(&hello)?;
        if self == Speaks::Nothing {
            return Ok(Vec::new());
        }
        let mut challenge = [0; CHALLENGE];
        stream.read_exact(&mut challenge)?;
        stream.write_all(&proof(name, &hello, &challenge))?;
        let mut verdict = vec![0; VERDICT];
        stream.read_exact(&mut verdict)?;
        Ok(verdict)
    }

    /// Returns true if `said`, all that an end has said to a stranger, or what it said after its challenge,
    /// is no more than every stranger may hear: nothing that depends on the secret.
    pub(crate) fn tells_nothing(self, said: &[u8]) -> bool {
        if self == Speaks::Nothing {
            return said.is_empty();
        }
        let has_challenge = said.first() == SERVER_MAGIC.first();
        let (challenge, verdict) = said.split_at(if has_challenge { said.len().min(CHALLENGE) } else { 0 });
        let begins = challenge.iter().zip(SERVER_MAGIC).all(|(said, wanted)| said == wanted);
        begins && (verdict.is_empty() || verdict == WRONG_SECRET)
    }
}

/// Returns the first message: a flag of the secret, random bytes, the session, a port, and two names with
/// their lengths: the node's, and that of the process which it looks for.
pub(crate) fn hello(name: &GivenName) -> [u8; HELLO] {
    let mut hello = [0; HELLO];
    hello[..7].copy_from_slice(CLIENT_MAGIC);
    hello[7] = u8::from(name.secret.is_some());
    hello[8..40].fill(7);
    hello[40..56].copy_from_slice(&name.session);
    hello[56..58].copy_from_slice(&9u16.to_le_bytes());
    hello[58] = name.identity.len() as u8;
    hello[59..59 + name.identity.len()].copy_from_slice(&name.identity);
    hello[91] = name.wanted.len() as u8;
    hello[92..92 + name.wanted.len()].copy_from_slice(&name.wanted);
    hello
}

/// Returns the proof: a flag of a session that goes on, a later attempt than any, the last frame received,
/// and a code over all that was said.
pub(crate) fn proof(name: &GivenName, hello: &[u8], challenge: &[u8]) -> [u8; PROOF] {
    let mut proof = [0; PROOF];
    proof[0] = u8::from(name.goes_on);
    proof[1..5].copy_from_slice(&u32::MAX.to_le_bytes());
    if let Some(secret) = &name.secret {
        let mut code = HMAC::new(secret);
        code.update(b"client");
        code.update(hello);
        code.update(challenge);
        code.update(&proof[..13]);
        proof[13..].copy_from_slice(&code.finalize());
    }
    proof
}

/// A frame that claims to have these many bytes of header and payload.
pub(crate) fn frame(number: u64, lens: [u32; 2], header: &[u8], payload: &[u8]) -> Vec<u8> {
    let [header_len, payload_len] = lens.map(u32::to_le_bytes);
    [&number.to_le_bytes()[..], &0u64.to_le_bytes(), &header_len, &payload_len, header, payload].concat()
}
