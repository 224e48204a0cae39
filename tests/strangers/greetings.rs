//! The start of a connection, written by hand and without the library's own code, as a stranger who has read
//! the sources could write it.
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
    /// The protocol of rank 0's port.
    ControlStar,
    /// The protocol of a scheduler's or a server's port.
    Servers,
    /// The port of another rank. It shows rank 0 that the rank's process lives, and accepts no connection.
    Nothing,
}

/// The lengths of the messages that the two ends of a connection send before frames.
pub(crate) const HELLO: usize = 124;
pub(crate) const CHALLENGE: usize = 40;
pub(crate) const PROOF: usize = 45;
pub(crate) const VERDICT: usize = 41;

/// The first bytes of a client and of a server. The next byte is a flag: 1 if the sender has a secret.
pub(crate) const CLIENT_MAGIC: &[u8; 7] = b"RPULLC\x03";
pub(crate) const SERVER_MAGIC: &[u8; 7] = b"RPULLS\x03";
/// A server's verdict on a wrong proof: a code, a number, and no proof of its own.
pub(crate) const WRONG_SECRET: [u8; VERDICT] = {
    let mut verdict = [0; VERDICT];
    verdict[0] = 1;
    verdict
};

/// Identity that a stranger claims.
#[derive(Debug, Clone, Default)]
pub(crate) struct GivenName {
    /// The name of the node that the stranger claims to be.
    pub(crate) identity: Vec<u8>,
    /// The name of the process to which the stranger wants to connect.
    pub(crate) wanted: Vec<u8>,
    pub(crate) session: [u8; 16],
    /// True if the stranger claims to resume an earlier session.
    pub(crate) goes_on: bool,
    /// The stranger's secret. `None` if the stranger claims to have no secret.
    pub(crate) secret: Option<Vec<u8>>,
}

impl Speaks {
    /// Returns the lengths of the protocol's messages, prefixes of frames included.
    pub(crate) fn lengths(self) -> &'static [usize] {
        match self {
            Speaks::Nothing => &[1, HELLO],
            _ => &[1, 8, 24, CHALLENGE, PROOF, HELLO, HELLO + PROOF, 4096],
        }
    }

    /// Returns the number of garbage bytes after which the other end knows that they are no greeting, and
    /// needs no further bytes.
    pub(crate) fn enough(self) -> usize {
        match self {
            Speaks::Nothing => usize::MAX,
            _ => 8,
        }
    }

    /// Begins a connection as a node of the job does, as far as the other end allows it. Returns the other
    /// end's last message.
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

    /// Returns true if nothing in `said` depends on the secret. `said` is all bytes that an end has sent to a
    /// stranger, or all bytes after its challenge.
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

/// Returns the first message. It consists of a flag for the secret, random bytes, the session, a port, the
/// node's name, and the name of the process to which the node connects. Each name follows its length.
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

/// Returns the proof. It consists of a flag for a resumed session, an attempt number higher than any other,
/// the last received frame, and a code over all earlier messages.
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

/// Returns a frame whose prefix claims that header and payload have the lengths `lens`.
pub(crate) fn frame(number: u64, lens: [u32; 2], header: &[u8], payload: &[u8]) -> Vec<u8> {
    let [header_len, payload_len] = lens.map(u32::to_le_bytes);
    [&number.to_le_bytes()[..], &0u64.to_le_bytes(), &header_len, &payload_len, header, payload].concat()
}
