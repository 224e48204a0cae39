//! The first bytes of every connection, by which its ends recognise each other. This module does no I/O.
//!
//! Either both ends have the job's secret or neither has. Each end proves that it has the secret by a keyed
//! hash over fresh random numbers of both ends and over the name of the process that the client looks for. So
//! an overheard proof is useless on another connection, in the other direction, and for another process of
//! the job:
//!
//! ```text
//!   client                                               server
//!     | -- hello: has a secret? random, names, port -----> |
//!     | <-- challenge: has a secret? random -------------- |
//!     | -- proof(secret, all above), resumption ---------> |   wrong: "refused", and the end
//!     | <-- verdict, proof(secret, all above) ------------ |
//! ```
//!
//! Each message has a fixed size, so a client that has proved nothing costs the server a buffer of some
//! hundred bytes. The client sends its proof first, so strangers get nothing that depends on the secret. The
//! connection is not encrypted: an attacker who can change the traffic between two hosts can change values.

use std::io;

use ringpull_base::Secret;
use ringpull_base::secret::CODE_BYTES;

/// The first bytes of a client and of a server: the name of the protocol, then its version.
const MAGIC: &[u8; 7] = b"RPULLC\x03";
const SERVER_MAGIC: &[u8; 7] = b"RPULLS\x03";
const START: usize = MAGIC.len() + 1;

/// The longest name of a process.
const NAME: usize = 32;

pub(crate) const HELLO: usize = START + 32 + 16 + 2 + 2 * (1 + NAME);
/// The offsets of the two names in a hello.
const NAMES: [usize; 2] = [START + 50, START + 50 + 1 + NAME];
pub(crate) const CHALLENGE: usize = START + 32;
const RESUMPTION: usize = 1 + 4 + 8;
pub(crate) const PROOF: usize = RESUMPTION + CODE_BYTES;
const RULING: usize = 1 + 8;
pub(crate) const VERDICT: usize = RULING + CODE_BYTES;

/// The introduction of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    /// A random number, the same for every connection of a session.
    pub(crate) session: [u8; 16],
    /// A port of the client's host that is open as long as its process lives, or 0 if there is none.
    pub(crate) port: u16,
    /// The name to which messages for the client are sent.
    pub(crate) identity: Vec<u8>,
    /// The name of the process that the client looks for: `rank 0`, `server 1`.
    pub(crate) wanted: Vec<u8>,
}

/// The progress of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resumption {
    /// True if there has been a connection before.
    pub(crate) goes_on: bool,
    /// The number of connections that the client has begun, including this one.
    pub(crate) attempt: u32,
    /// The number of the last frame received.
    pub(crate) received: u64,
}

/// The answer of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The client is admitted. The number is that of the last frame received in this session.
    Admitted(u64),
    /// The client has another secret.
    WrongSecret,
    /// No process of the job has this identity, or another process has it.
    Unknown,
    /// The client's session has ended.
    Forgotten,
    /// There are more connections than processes of the job.
    Full,
    /// The client looks for another process of the job.
    Elsewhere,
}

impl Verdict {
    fn encode(self) -> [u8; RULING] {
        let (code, received) = match self {
            Verdict::Admitted(received) => (0, received),
            Verdict::WrongSecret => (1, 0),
            Verdict::Unknown => (2, 0),
            Verdict::Forgotten => (3, 0),
            Verdict::Full => (4, 0),
            Verdict::Elsewhere => (5, 0),
        };
        let mut bytes = [code; RULING];
        bytes[1..].copy_from_slice(&u64::to_le_bytes(received));
        bytes
    }

    fn decode(bytes: [u8; RULING]) -> Option<Self> {
        let received = u64::from_le_bytes(bytes[1..].try_into().expect("eight bytes"));
        [
            Verdict::Admitted(received),
            Verdict::WrongSecret,
            Verdict::Unknown,
            Verdict::Forgotten,
            Verdict::Full,
            Verdict::Elsewhere,
        ]
        .into_iter()
        .find(|verdict| verdict.encode() == bytes)
    }
}

/// The reason that there is no connection.
#[derive(Debug)]
pub(crate) enum HandshakeFailure {
    /// The connection broke, or was silent for too long.
    Io(io::Error),
    /// The peer uses another protocol.
    Foreign,
    /// The peer has a secret, and this process has none.
    WantsSecret,
    /// This process has a secret, and the peer has none.
    HasNoSecret,
    /// The secrets differ.
    WrongSecret,
    /// The peer has the secret, and refuses this process.
    Refused(Verdict),
}

impl From<io::Error> for HandshakeFailure {
    fn from(cause: io::Error) -> Self {
        HandshakeFailure::Io(cause)
    }
}

/// The part of the client.
pub(crate) struct Client<'a> {
    secret: Option<&'a Secret>,
    /// All bytes that both ends have sent.
    said: Vec<u8>,
}

impl<'a> Client<'a> {
    /// Begins with a hello.
    ///
    /// # Panics
    /// If a name is longer than [`NAME`].
    pub(crate) fn new(hello: &Hello, secret: Option<&'a Secret>, random: [u8; 32]) -> (Self, [u8; HELLO]) {
        let mut bytes = [0; HELLO];
        let (start, rest) = bytes.split_at_mut(START);
        start[..7].copy_from_slice(MAGIC);
        start[7] = u8::from(secret.is_some());
        rest[..32].copy_from_slice(&random);
        rest[32..48].copy_from_slice(&hello.session);
        rest[48..50].copy_from_slice(&hello.port.to_le_bytes());
        for (at, name) in NAMES.into_iter().zip([&hello.identity, &hello.wanted]) {
            bytes[at] = name.len() as u8;
            bytes[at + 1..][..name.len()].copy_from_slice(name);
        }
        (Client { secret, said: bytes.to_vec() }, bytes)
    }

    /// Answers the challenge with a proof.
    pub(crate) fn prove(
        &mut self,
        challenge: &[u8; CHALLENGE],
        resumption: Resumption,
    ) -> Result<[u8; PROOF], HandshakeFailure> {
        if challenge[..START] == self.said[..START] {
            // While nobody listens on a port, TCP may give it to the end that connects.
            return Err(io::Error::other("it is connected to itself").into());
        }
        if !challenge.starts_with(SERVER_MAGIC) {
            return Err(HandshakeFailure::Foreign);
        }
        check_secrets(challenge[7], self.secret)?;
        self.said.extend_from_slice(challenge);
        let mut proof = [0; PROOF];
        proof[0] = u8::from(resumption.goes_on);
        proof[1..5].copy_from_slice(&resumption.attempt.to_le_bytes());
        proof[5..13].copy_from_slice(&resumption.received.to_le_bytes());
        sign(&mut proof, "client", &self.said, self.secret);
        self.said.extend_from_slice(&proof);
        Ok(proof)
    }

    /// Reads the verdict. Returns the number of the last frame that the server has received.
    pub(crate) fn conclude(&self, verdict: &[u8; VERDICT]) -> Result<u64, HandshakeFailure> {
        let said = Verdict::decode(*verdict.first_chunk().expect("it is longer")).ok_or(HandshakeFailure::Foreign)?;
        if said == Verdict::WrongSecret || !is_signed(verdict, "server", &self.said, self.secret) {
            return Err(HandshakeFailure::WrongSecret);
        }
        match said {
            Verdict::Admitted(received) => Ok(received),
            refusal => Err(HandshakeFailure::Refused(refusal)),
        }
    }
}

/// The part of the server, up to the verdict.
#[derive(Debug)]
pub(crate) struct Examination {
    random: [u8; 32],
    /// All bytes that both ends have sent.
    said: Vec<u8>,
}

/// A client that has proved the secret and waits for the verdict.
#[derive(Debug)]
pub(crate) struct ProvedClient {
    pub(crate) hello: Hello,
    pub(crate) resumption: Resumption,
    said: Vec<u8>,
}

impl Examination {
    pub(crate) fn new(random: [u8; 32]) -> Self {
        Examination { random, said: Vec::new() }
    }

    /// The number of bytes that the client still has to send before it gets an answer.
    pub(crate) fn missing(&self) -> usize {
        if self.said.len() < HELLO { HELLO - self.said.len() } else { HELLO + CHALLENGE + PROOF - self.said.len() }
    }

    /// Takes at most [`Examination::missing`] bytes of the client, and appends the answer to `reply`. The
    /// answer must be sent even if this returns an error. A client with another protocol is recognised by its
    /// first bytes.
    pub(crate) fn take(
        &mut self,
        bytes: &[u8],
        secret: Option<&Secret>,
        reply: &mut Vec<u8>,
    ) -> Result<Option<ProvedClient>, HandshakeFailure> {
        self.said.extend_from_slice(bytes);
        let len = self.said.len();
        if !MAGIC.starts_with(&self.said[..len.min(MAGIC.len())]) {
            return Err(HandshakeFailure::Foreign);
        }
        if len == HELLO {
            if NAMES.iter().any(|at| usize::from(self.said[*at]) > NAME) {
                return Err(HandshakeFailure::Foreign);
            }
            let mut challenge = [0; CHALLENGE];
            challenge[..7].copy_from_slice(SERVER_MAGIC);
            challenge[7] = u8::from(secret.is_some());
            challenge[START..].copy_from_slice(&self.random);
            self.said.extend_from_slice(&challenge);
            reply.extend_from_slice(&challenge);
            check_secrets(self.said[7], secret)?;
        }
        if len < HELLO + CHALLENGE + PROOF {
            return Ok(None);
        }
        let (before, proof) = self.said.split_at(HELLO + CHALLENGE);
        if !is_signed(proof, "client", before, secret) {
            let mut verdict = [0; VERDICT];
            verdict[..RULING].copy_from_slice(&Verdict::WrongSecret.encode());
            reply.extend_from_slice(&verdict);
            return Err(HandshakeFailure::WrongSecret);
        }
        let rest = &before[START..];
        let [identity, wanted] = NAMES.map(|at| before[at + 1..][..usize::from(before[at])].to_vec());
        let hello = Hello {
            session: rest[32..48].try_into().expect("sixteen bytes"),
            port: u16::from_le_bytes(rest[48..50].try_into().expect("two bytes")),
            identity,
            wanted,
        };
        let resumption = Resumption {
            goes_on: proof[0] != 0,
            attempt: u32::from_le_bytes(proof[1..5].try_into().expect("four bytes")),
            received: u64::from_le_bytes(proof[5..13].try_into().expect("eight bytes")),
        };
        Ok(Some(ProvedClient { hello, resumption, said: std::mem::take(&mut self.said) }))
    }
}

impl ProvedClient {
    /// Encodes the verdict.
    pub(crate) fn answer(&self, verdict: Verdict, secret: Option<&Secret>) -> [u8; VERDICT] {
        let mut bytes = [0; VERDICT];
        bytes[..RULING].copy_from_slice(&verdict.encode());
        sign(&mut bytes, "server", &self.said, secret);
        bytes
    }
}

/// Returns an error if only one of the peer and this process has a secret.
fn check_secrets(its: u8, secret: Option<&Secret>) -> Result<(), HandshakeFailure> {
    match (its != 0, secret.is_some()) {
        (true, false) => Err(HandshakeFailure::WantsSecret),
        (false, true) => Err(HandshakeFailure::HasNoSecret),
        _ => Ok(()),
    }
}

/// Writes the code of `said` and the rest of the message to the message's end.
fn sign(message: &mut [u8], purpose: &str, said: &[u8], secret: Option<&Secret>) {
    let (text, code) = message.split_at_mut(message.len() - CODE_BYTES);
    if let Some(secret) = secret {
        code.copy_from_slice(&secret.code(purpose, &[said, text]));
    }
}

/// Returns true if the message ends with the right code, or if this process has no secret.
fn is_signed(message: &[u8], purpose: &str, said: &[u8], secret: Option<&Secret>) -> bool {
    let (text, code) = message.split_at(message.len() - CODE_BYTES);
    secret.is_none_or(|secret| secret.is_code(code, purpose, &[said, text]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Secret {
        Secret::within(&text.repeat(16)).unwrap()
    }

    fn hello() -> Hello {
        Hello { session: [5; 16], port: 4711, identity: b"node 1".to_vec(), wanted: b"server 1".to_vec() }
    }

    const RESUMED: Resumption = Resumption { goes_on: true, attempt: 3, received: 7 };

    /// Runs a handshake between a client and a server with these secrets, byte by byte. `change` may change a
    /// byte of the client or of the server.
    fn talk(
        client: Option<&Secret>,
        server: Option<&Secret>,
        change: Option<usize>,
    ) -> (Result<(Hello, Resumption), HandshakeFailure>, Result<u64, HandshakeFailure>) {
        let mut at = 0;
        let mut passing = |bytes: &mut [u8]| {
            if let Some(byte) = change.and_then(|change| bytes.get_mut(change.checked_sub(at)?)) {
                *byte ^= 1;
            }
            at += bytes.len();
        };
        let broken = || HandshakeFailure::Io(io::ErrorKind::UnexpectedEof.into());
        let (mut asks, mut hello) = Client::new(&hello(), client, [1; 32]);
        let (mut examines, mut reply) = (Examination::new([2; 32]), Vec::new());
        passing(&mut hello);
        let mut say = |bytes: &[u8], reply: &mut Vec<u8>| {
            let mut proved = None;
            for byte in bytes {
                proved = examines.take(&[*byte], server, reply)?;
            }
            Ok(proved)
        };
        let outcome = say(&hello, &mut reply);
        passing(&mut reply);
        let Ok(challenge) = <[u8; CHALLENGE]>::try_from(&reply[..]) else {
            return (Err(outcome.unwrap_err()), Err(broken()));
        };
        let mut proof = match asks.prove(&challenge, RESUMED) {
            Ok(proof) => proof,
            Err(failure) => return (Err(outcome.err().unwrap_or_else(broken)), Err(failure)),
        };
        if let Err(failure) = outcome {
            return (Err(failure), Err(broken()));
        }
        passing(&mut proof);
        reply.clear();
        let proved = say(&proof, &mut reply).map(|proved| proved.expect("all has been said"));
        if let Ok(proved) = &proved {
            reply.extend(proved.answer(Verdict::Admitted(9), server));
        }
        passing(&mut reply);
        let answered = asks.conclude(&reply[..].try_into().unwrap());
        (proved.map(|proved| (proved.hello, proved.resumption)), answered)
    }

    #[test]
    fn both_ends_prove_the_secret_and_know_each_other() {
        for secret in [None, Some(secret("a"))] {
            let (proved, answered) = talk(secret.as_ref(), secret.as_ref(), None);
            assert_eq!(proved.unwrap(), (hello(), RESUMED));
            assert_eq!(answered.unwrap(), 9);
        }
    }

    #[test]
    fn other_secrets_are_refused_and_both_ends_know_why() {
        let [a, b] = ["a", "b"].map(secret);
        let (here, there) = talk(Some(&a), Some(&b), None);
        assert!(matches!((here, there), (Err(HandshakeFailure::WrongSecret), Err(HandshakeFailure::WrongSecret))));
        let (here, there) = talk(None, Some(&b), None);
        assert!(matches!((here, there), (Err(HandshakeFailure::HasNoSecret), Err(HandshakeFailure::WantsSecret))));
        let (here, there) = talk(Some(&a), None, None);
        assert!(matches!((here, there), (Err(HandshakeFailure::WantsSecret), Err(HandshakeFailure::HasNoSecret))));
    }

    #[test]
    fn a_changed_byte_is_noticed_wherever_it_is() {
        let secret = secret("a");
        for at in 0..HELLO + CHALLENGE + PROOF + VERDICT {
            let (proved, answered) = talk(Some(&secret), Some(&secret), Some(at));
            assert!(answered.is_err(), "byte {at}");
            assert!(proved.is_err() || at >= HELLO + CHALLENGE + PROOF, "byte {at}");
        }
    }

    #[test]
    fn a_proof_is_of_no_use_for_another_challenge() {
        let secret = secret("a");
        let (mut client, hello) = Client::new(&hello(), Some(&secret), [1; 32]);
        let mut reply = Vec::new();
        Examination::new([2; 32]).take(&hello, Some(&secret), &mut reply).unwrap();
        let proof = client.prove(&reply[..].try_into().unwrap(), RESUMED).unwrap();
        let mut again = Examination::new([3; 32]);
        again.take(&hello, Some(&secret), &mut reply).unwrap();
        assert!(matches!(again.take(&proof, Some(&secret), &mut reply), Err(HandshakeFailure::WrongSecret)));
    }

    #[test]
    fn another_version_is_known_by_the_first_bytes() {
        let mut reply = Vec::new();
        assert!(matches!(
            Examination::new([2; 32]).take(b"RPULLC\x02", None, &mut reply),
            Err(HandshakeFailure::Foreign)
        ));
        assert!(matches!(Examination::new([2; 32]).take(b"GET", None, &mut reply), Err(HandshakeFailure::Foreign)));
        assert!(reply.is_empty());
    }
}
