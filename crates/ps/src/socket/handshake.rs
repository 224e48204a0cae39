//! Who may speak: the first bytes of every connection.
//!
//! Both ends have the job's secret, or neither has. Each proves it by a keyed hash over fresh random numbers
//! of both, so that a proof that was overheard is of no use for another connection, nor for the other
//! direction:
//!
//! ```text
//!   client                                         server
//!     | -- hello: has a secret? random, identity --> |
//!     | <-- challenge: has a secret? random -------- |
//!     | -- proof(secret, all above), resumption ---> |   wrong: "refused", and the end
//!     | <-- verdict, proof(secret, all above) ------ |
//! ```
//!
//! Each message has a fixed size, and all of them together a deadline: a client that has proved nothing costs
//! the server a buffer of some hundred bytes. The client proves first, so strangers get nothing that depends
//! on the secret. The connection is not encrypted: an attacker who can change what travels between two hosts
//! can change values.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ringpull_base::Secret;
use ringpull_base::secret::CODE_BYTES;
use ringpull_base::strangers::GREETING;

/// The first bytes that a client sends and those that a server does: the name of the protocol, and its
/// version.
const MAGIC: &[u8; 7] = b"RPULLC\x01";
const SERVER_MAGIC: &[u8; 7] = b"RPULLS\x01";

/// The longest identity.
pub(super) const IDENTITY: usize = 32;

const HELLO: usize = 8 + 32 + 16 + 1 + IDENTITY;
const CHALLENGE: usize = 8 + 32;
const PROOF: usize = 1 + 8 + CODE_BYTES;
const VERDICT: usize = 1 + 8 + CODE_BYTES;

/// What a client says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    /// Random, the same for every connection of a session.
    pub(super) session: [u8; 16],
    /// The name that messages to it are sent to.
    identity: [u8; IDENTITY],
    identity_len: usize,
}

impl Hello {
    /// # Panics
    /// If the identity is longer than [`IDENTITY`].
    pub(super) fn new(session: [u8; 16], name: &[u8]) -> Self {
        let mut identity = [0; IDENTITY];
        identity[..name.len()].copy_from_slice(name);
        Hello { session, identity, identity_len: name.len() }
    }

    pub(super) fn identity(&self) -> &[u8] {
        &self.identity[..self.identity_len]
    }
}

/// How far a session has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resumption {
    /// Whether there has been a connection before.
    pub(super) goes_on: bool,
    /// The number of the last frame received.
    pub(super) received: u64,
}

/// What a server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Welcome; the number of the last frame received in this session.
    Admitted(u64),
    /// The secret is another.
    WrongSecret,
    /// No node of the job has this identity, or another process has it.
    Unknown,
    /// There is no such session any more.
    Forgotten,
    /// There are more connections than nodes.
    Full,
}

impl Verdict {
    fn code(self) -> (u8, u64) {
        match self {
            Verdict::Admitted(received) => (0, received),
            Verdict::WrongSecret => (1, 0),
            Verdict::Unknown => (2, 0),
            Verdict::Forgotten => (3, 0),
            Verdict::Full => (4, 0),
        }
    }

    fn of(code: u8, received: u64) -> Option<Self> {
        [Verdict::Admitted(received), Verdict::WrongSecret, Verdict::Unknown, Verdict::Forgotten, Verdict::Full]
            .into_iter()
            .find(|verdict| verdict.code().0 == code)
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection broke, or was silent for too long.
    Io(io::Error),
    /// The peer speaks something else.
    Foreign,
    /// The peer has a secret, and this node has none.
    WantsSecret,
    /// This node has a secret, and the peer has none.
    HasNoSecret,
    /// The secrets differ.
    WrongSecret,
    /// The peer has the secret, and refuses.
    Refused(Verdict),
}

impl From<io::Error> for Failure {
    fn from(cause: io::Error) -> Self {
        Failure::Io(cause)
    }
}

/// The client's part. Gives the number of the last frame that the server has received.
pub(super) fn ask(
    stream: &TcpStream,
    hello: &Hello,
    resumption: Resumption,
    secret: Option<&Secret>,
    random: [u8; 32],
) -> Result<u64, Failure> {
    let mut talk = Talk::new(stream);
    let mut sent = [0; HELLO];
    sent[..7].copy_from_slice(MAGIC);
    sent[7] = u8::from(secret.is_some());
    sent[8..40].copy_from_slice(&random);
    sent[40..56].copy_from_slice(&hello.session);
    sent[56] = hello.identity_len as u8;
    sent[57..].copy_from_slice(&hello.identity);
    talk.write(&sent)?;
    let challenge: [u8; CHALLENGE] = talk.read()?;
    if challenge[..8] == sent[..8] {
        // While nobody listens on a port, TCP may give it to the end that connects.
        return Err(io::Error::other("it is connected to itself").into());
    }
    if !challenge.starts_with(SERVER_MAGIC) {
        return Err(Failure::Foreign);
    }
    check_secrets(challenge[7], secret)?;
    let mut proof = [0; PROOF];
    proof[0] = u8::from(resumption.goes_on);
    proof[1..9].copy_from_slice(&resumption.received.to_le_bytes());
    if let Some(secret) = secret {
        let code = secret.code("client", &[&sent, &challenge, &proof[..9]]);
        proof[9..].copy_from_slice(&code);
    }
    talk.write(&proof)?;
    let verdict: [u8; VERDICT] = talk.read()?;
    let received = u64::from_le_bytes(verdict[1..9].try_into().expect("eight bytes"));
    let said = Verdict::of(verdict[0], received).ok_or(Failure::Foreign)?;
    if said == Verdict::WrongSecret {
        return Err(Failure::WrongSecret);
    }
    let parts: [&[u8]; 4] = [&sent, &challenge, &proof, &verdict[..9]];
    if secret.is_some_and(|secret| !secret.is_code(&verdict[9..], "server", &parts)) {
        return Err(Failure::WrongSecret);
    }
    match said {
        Verdict::Admitted(received) => Ok(received),
        refusal => Err(Failure::Refused(refusal)),
    }
}

/// A client that has proved itself, and waits for the verdict.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) hello: Hello,
    pub(super) resumption: Resumption,
    hello_bytes: [u8; HELLO],
    challenge: [u8; CHALLENGE],
    proof: [u8; PROOF],
}

/// The server's part, up to the verdict.
pub(super) fn examine(stream: &TcpStream, secret: Option<&Secret>, random: [u8; 32]) -> Result<Client, Failure> {
    let mut talk = Talk::new(stream);
    // Who speaks something else is known by the first bytes, and need not send more.
    let start: [u8; 8] = talk.read()?;
    if !start.starts_with(MAGIC) {
        return Err(Failure::Foreign);
    }
    let rest: [u8; HELLO - 8] = talk.read()?;
    let mut hello_bytes = [0; HELLO];
    hello_bytes[..8].copy_from_slice(&start);
    hello_bytes[8..].copy_from_slice(&rest);
    let identity_len = usize::from(hello_bytes[56]);
    if identity_len > IDENTITY {
        return Err(Failure::Foreign);
    }
    let mut challenge = [0; CHALLENGE];
    challenge[..7].copy_from_slice(SERVER_MAGIC);
    challenge[7] = u8::from(secret.is_some());
    challenge[8..].copy_from_slice(&random);
    talk.write(&challenge)?;
    check_secrets(hello_bytes[7], secret)?;
    let proof: [u8; PROOF] = talk.read()?;
    let parts: [&[u8]; 3] = [&hello_bytes, &challenge, &proof[..9]];
    if secret.is_some_and(|secret| !secret.is_code(&proof[9..], "client", &parts)) {
        let mut verdict = [0; VERDICT];
        verdict[0] = Verdict::WrongSecret.code().0;
        talk.write(&verdict)?;
        return Err(Failure::WrongSecret);
    }
    let session = hello_bytes[40..56].try_into().expect("sixteen bytes");
    let hello = Hello::new(session, &hello_bytes[57..57 + identity_len]);
    let received = u64::from_le_bytes(proof[1..9].try_into().expect("eight bytes"));
    let resumption = Resumption { goes_on: proof[0] != 0, received };
    Ok(Client { hello, resumption, hello_bytes, challenge, proof })
}

impl Client {
    /// Says the verdict.
    pub(super) fn answer(&self, stream: &TcpStream, verdict: Verdict, secret: Option<&Secret>) -> io::Result<()> {
        let mut bytes = [0; VERDICT];
        let (code, received) = verdict.code();
        bytes[0] = code;
        bytes[1..9].copy_from_slice(&received.to_le_bytes());
        if let Some(secret) = secret {
            let code = secret.code("server", &[&self.hello_bytes, &self.challenge, &self.proof, &bytes[..9]]);
            bytes[9..].copy_from_slice(&code);
        }
        Talk::new(stream).write(&bytes)
    }
}

/// Whether the peer has a secret exactly if this node has.
fn check_secrets(its: u8, secret: Option<&Secret>) -> Result<(), Failure> {
    match (its != 0, secret.is_some()) {
        (true, false) => Err(Failure::WantsSecret),
        (false, true) => Err(Failure::HasNoSecret),
        _ => Ok(()),
    }
}

/// A stream whose reads and writes end together at one deadline.
struct Talk<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl<'a> Talk<'a> {
    fn new(stream: &'a TcpStream) -> Self {
        Talk { stream, deadline: Instant::now() + GREETING }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }

    fn read<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        let mut filled = 0;
        while filled < N {
            self.stream.set_read_timeout(self.left()?)?;
            match self.stream.read(&mut bytes[filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => filled += count,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
        Ok(bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        // Less than any socket's buffer.
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write_all(bytes)
    }
}
