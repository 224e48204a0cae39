//! How the two ends of a control connection prove to each other that they belong to one job.
//!
//! Rank 0 makes a secret with the operating system's randomness and gives it to the other ranks through MPI.
//! Each end sends a nonce and proves the secret by a code over both nonces, so neither the secret nor an
//! earlier greeting is of use to whoever listens. Nothing else of a connection is read before.

use std::fmt::Write;

use hmac_sha256::HMAC;

use ringpull_base::{Error, Result};

const NONCE_BYTES: usize = 16;
const CODE_BYTES: usize = 32;

/// What rank 0 sends first.
pub(super) const CHALLENGE_BYTES: usize = NONCE_BYTES;
/// What the other rank answers: its rank, its attempts, the frames it has received, its port, its nonce, its
/// code.
pub(super) const HELLO_BYTES: usize = 4 + 4 + 8 + 2 + NONCE_BYTES + CODE_BYTES;
/// What rank 0 answers to that: the frames it has received, its code.
pub(super) const WELCOME_BYTES: usize = 8 + CODE_BYTES;

/// What only ranks of one job know.
#[derive(Clone)]
pub(super) struct Secret([u8; 32]);

/// Bytes that nobody has seen before.
pub(super) type Nonce = [u8; NONCE_BYTES];

/// Who greets rank 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) rank: u32,
    /// How often it has connected, this time included.
    pub(super) attempt: u32,
    /// How many frames it has received on earlier connections of this job.
    pub(super) received: u64,
    /// A port of its host that is open as long as its process lives.
    pub(super) port: u16,
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let failed = |cause: rustix::io::Errno| Error::io("read", "the system's random numbers", &cause.into());
    let mut filled = 0;
    while filled < N {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags).map_err(failed)?;
    }
    Ok(bytes)
}

/// A new nonce.
pub(super) fn nonce() -> Result<Nonce> {
    random()
}

impl Secret {
    pub(super) fn random() -> Result<Self> {
        random().map(Secret)
    }

    pub(super) fn to_hex(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a String takes what it is given");
            text
        })
    }

    pub(super) fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 2 * bytes.len() || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
        }
        Some(Secret(bytes))
    }

    /// A code that only who knows the secret can make, of `purpose` and `parts` of fixed lengths.
    fn code(&self, purpose: u8, parts: [&[u8]; 3]) -> [u8; CODE_BYTES] {
        let mut hash = HMAC::new(self.0);
        hash.update([purpose]);
        parts.iter().for_each(|part| hash.update(part));
        hash.finalize()
    }

    /// The answer to rank 0's challenge.
    pub(super) fn hello(&self, hello: Hello, challenge: &Nonce, nonce: &Nonce) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..4].copy_from_slice(&hello.rank.to_le_bytes());
        bytes[4..8].copy_from_slice(&hello.attempt.to_le_bytes());
        bytes[8..16].copy_from_slice(&hello.received.to_le_bytes());
        bytes[16..18].copy_from_slice(&hello.port.to_le_bytes());
        bytes[18..18 + NONCE_BYTES].copy_from_slice(nonce);
        let (said, code) = bytes.split_at_mut(HELLO_BYTES - CODE_BYTES);
        code.copy_from_slice(&self.code(0, [said, challenge, &[]]));
        bytes
    }

    /// What such an answer says, if it proves the secret.
    pub(super) fn read_hello(&self, bytes: &[u8; HELLO_BYTES], challenge: &Nonce) -> Option<(Hello, Nonce)> {
        let (said, code) = bytes.split_at(HELLO_BYTES - CODE_BYTES);
        if !are_equal(code, &self.code(0, [said, challenge, &[]])) {
            return None;
        }
        let hello = Hello {
            rank: u32::from_le_bytes(said[..4].try_into().ok()?),
            attempt: u32::from_le_bytes(said[4..8].try_into().ok()?),
            received: u64::from_le_bytes(said[8..16].try_into().ok()?),
            port: u16::from_le_bytes(said[16..18].try_into().ok()?),
        };
        Some((hello, said[18..].try_into().ok()?))
    }

    /// Rank 0's answer to the other's nonce.
    pub(super) fn welcome(&self, received: u64, challenge: &Nonce, nonce: &Nonce) -> [u8; WELCOME_BYTES] {
        let mut bytes = [0; WELCOME_BYTES];
        let said = received.to_le_bytes();
        bytes[..8].copy_from_slice(&said);
        bytes[8..].copy_from_slice(&self.code(1, [&said, challenge, nonce]));
        bytes
    }

    /// How many frames rank 0 has received, if the answer proves the secret.
    pub(super) fn read_welcome(&self, bytes: &[u8; WELCOME_BYTES], challenge: &Nonce, nonce: &Nonce) -> Option<u64> {
        let received = u64::from_le_bytes(bytes[..8].try_into().ok()?);
        are_equal(&self.welcome(received, challenge, nonce), bytes).then_some(received)
    }
}

/// Takes the same time wherever the difference is.
fn are_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_prove_the_secret_and_nothing_of_it_can_be_used_again() {
        let secret = Secret::from_hex(&Secret::random().unwrap().to_hex()).unwrap();
        let (challenge, answer) = (nonce().unwrap(), nonce().unwrap());
        let hello = Hello { rank: 3, attempt: 2, received: 7, port: 4711 };
        let bytes = secret.hello(hello, &challenge, &answer);
        assert_eq!(secret.read_hello(&bytes, &challenge), Some((hello, answer)));
        assert_eq!(secret.read_hello(&bytes, &nonce().unwrap()), None, "a replay");
        assert_eq!(Secret::random().unwrap().read_hello(&bytes, &challenge), None, "another job");
        for index in 0..HELLO_BYTES {
            let mut changed = bytes;
            changed[index] ^= 1;
            assert_eq!(secret.read_hello(&changed, &challenge), None, "byte {index} changed");
        }
        let bytes = secret.welcome(9, &challenge, &answer);
        assert_eq!(secret.read_welcome(&bytes, &challenge, &answer), Some(9));
        assert_eq!(secret.read_welcome(&bytes, &challenge, &nonce().unwrap()), None);
        assert_eq!(Secret::random().unwrap().read_welcome(&bytes, &challenge, &answer), None);
    }

    #[test]
    fn a_secret_that_was_cut_is_none() {
        let hex = Secret::random().unwrap().to_hex();
        assert!(Secret::from_hex(&hex[1..]).is_none() && Secret::from_hex(&hex.replace(&hex[..1], "x")).is_none());
        // Rust reads a number with its sign.
        assert!(Secret::from_hex(&"+5".repeat(32)).is_none());
    }
}
