//! The begin of connections, by hand and apart from the library's own code, as a reader of the sources knows
//! the protocols.
//!
//! | port | first | then | then | at last |
//! | --- | --- | --- | --- | --- |
//! | control star | rank 0: 16 random bytes | the other: 66 bytes, with a proof | rank 0: 40 bytes | frames |
//! | scheduler, server | client: 89 bytes | it: 40, random | client: 41, a proof | it: 41; frames |
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

/// The lengths of what the two ends of a control connection say before frames.
pub(crate) const CHALLENGE: usize = 16;
pub(crate) const HELLO: usize = 66;
pub(crate) const WELCOME: usize = 40;
/// The same for schedulers and servers.
pub(crate) const CLIENT_HELLO: usize = 89;
pub(crate) const SERVER_CHALLENGE: usize = 40;
pub(crate) const PROOF: usize = 41;
pub(crate) const VERDICT: usize = 41;

/// The first bytes of a client and of a server. The next byte says whether there is a secret.
pub(crate) const CLIENT_MAGIC: &[u8; 7] = b"RPULLC\x01";
pub(crate) const SERVER_MAGIC: &[u8; 7] = b"RPULLS\x01";
/// A server's verdict on a wrong proof: a code, a number, and no proof of its own.
pub(crate) const WRONG_SECRET: [u8; VERDICT] = {
    let mut verdict = [0; VERDICT];
    verdict[0] = 1;
    verdict
};

/// The name that a stranger gives.
#[derive(Debug, Clone, Default)]
pub(crate) struct Name {
    /// At the control star.
    pub(crate) rank: u32,
    /// At a scheduler or a server: what the node calls itself, and its session.
    pub(crate) identity: Vec<u8>,
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
            Speaks::ControlStar => &[1, 12, CHALLENGE, WELCOME, HELLO, HELLO + 12, 4096],
            Speaks::Servers => &[1, 8, 24, SERVER_CHALLENGE, PROOF, CLIENT_HELLO, CLIENT_HELLO + PROOF, 4096],
            Speaks::Nothing => &[1, HELLO, CLIENT_HELLO],
        }
    }

    /// After this many bytes of garbage the other end knows that it is no greeting, and need not wait for
    /// more.
    pub(crate) fn enough(self) -> usize {
        match self {
            Speaks::ControlStar => HELLO,
            Speaks::Servers => 8,
            Speaks::Nothing => usize::MAX,
        }
    }

    /// Begins as a node of the job does, as far as the other end lets it: what that said last.
    pub(crate) fn greet(self, stream: &TcpStream, name: &Name) -> io::Result<Vec<u8>> {
        let mut stream = stream;
        match self {
            Speaks::ControlStar => {
                let mut challenge = [0; CHALLENGE];
                stream.read_exact(&mut challenge)?;
                stream.write_all(&hello(name, &challenge))?;
                let mut welcome = vec![0; WELCOME];
                stream.read_exact(&mut welcome)?;
                Ok(welcome)
            }
            Speaks::Servers => {
                let hello = client_hello(name);
                stream.write_all(&hello)?;
                let mut challenge = [0; SERVER_CHALLENGE];
                stream.read_exact(&mut challenge)?;
                stream.write_all(&proof(name, &hello, &challenge))?;
                let mut verdict = vec![0; VERDICT];
                stream.read_exact(&mut verdict)?;
                Ok(verdict)
            }
            Speaks::Nothing => {
                stream.write_all(&hello(name, &[0; CHALLENGE]))?;
                Ok(Vec::new())
            }
        }
    }

    /// Returns the first bytes of a stranger, without having heard anything, in the right form: all that he
    /// ever sends at the control star.
    pub(crate) fn opening(self, name: &Name) -> Vec<u8> {
        match self {
            Speaks::Servers => client_hello(name).to_vec(),
            Speaks::ControlStar | Speaks::Nothing => hello(name, &[0; CHALLENGE]).to_vec(),
        }
    }

    /// Returns true if `said`, all that an end has said to a stranger, or what it said after its challenge,
    /// is no more than every stranger may hear: nothing that depends on the secret.
    pub(crate) fn tells_nothing(self, said: &[u8]) -> bool {
        match self {
            Speaks::ControlStar => said.len() <= CHALLENGE,
            Speaks::Nothing => said.is_empty(),
            Speaks::Servers => {
                let has_challenge = said.first() == SERVER_MAGIC.first();
                let (challenge, verdict) =
                    said.split_at(if has_challenge { said.len().min(SERVER_CHALLENGE) } else { 0 });
                let begins = challenge.iter().zip(SERVER_MAGIC).all(|(said, wanted)| said == wanted);
                begins && (verdict.is_empty() || verdict == WRONG_SECRET)
            }
        }
    }
}

/// Rank, attempt, frames received, port, nonce, and a code over all of it and the challenge.
pub(crate) fn hello(name: &Name, challenge: &[u8; CHALLENGE]) -> [u8; HELLO] {
    let mut hello = [0; HELLO];
    hello[..4].copy_from_slice(&name.rank.to_le_bytes());
    // A later attempt than any.
    hello[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    hello[16..18].copy_from_slice(&9u16.to_le_bytes());
    hello[18..34].fill(7);
    let mut code = HMAC::new(name.secret.as_deref().unwrap_or_default());
    code.update("hello");
    code.update(&hello[..34]);
    code.update(challenge);
    hello[34..].copy_from_slice(&code.finalize());
    hello
}

/// Returns the first message: a flag of the secret, random bytes, the session, the node's identity and its
/// length.
pub(crate) fn client_hello(name: &Name) -> [u8; CLIENT_HELLO] {
    let mut hello = [0; CLIENT_HELLO];
    hello[..7].copy_from_slice(CLIENT_MAGIC);
    hello[7] = u8::from(name.secret.is_some());
    hello[8..40].fill(7);
    hello[40..56].copy_from_slice(&name.session);
    hello[56] = name.identity.len() as u8;
    hello[57..57 + name.identity.len()].copy_from_slice(&name.identity);
    hello
}

/// Returns the proof: a flag of a session that goes on, the last frame received, and a code over all that was
/// said.
pub(crate) fn proof(name: &Name, hello: &[u8], challenge: &[u8]) -> [u8; PROOF] {
    let mut proof = [0; PROOF];
    proof[0] = u8::from(name.goes_on);
    if let Some(secret) = &name.secret {
        let mut code = HMAC::new(secret);
        code.update(b"client");
        code.update(hello);
        code.update(challenge);
        code.update(&proof[..9]);
        proof[9..].copy_from_slice(&code.finalize());
    }
    proof
}

/// A frame of a control connection that claims to have this many bytes.
pub(crate) fn control_frame(len: u32, bytes: &[u8]) -> Vec<u8> {
    [&len.to_le_bytes()[..], &0u64.to_le_bytes(), bytes].concat()
}

/// A frame to a scheduler or a server, likewise.
pub(crate) fn frame(number: u64, lens: [u32; 2], header: &[u8], payload: &[u8]) -> Vec<u8> {
    let [header_len, payload_len] = lens.map(u32::to_le_bytes);
    [&number.to_le_bytes()[..], &0u64.to_le_bytes(), &header_len, &payload_len, header, payload].concat()
}
