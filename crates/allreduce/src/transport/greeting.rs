//! The greeting of a control connection: its two ends prove to each other that they belong to one job.
//!
//! Rank 0 makes a secret with the operating system's randomness and gives it to the other ranks through MPI.
//! Each end sends a nonce and proves the secret by a code over both nonces, so neither the secret nor an
//! earlier greeting is of use to an eavesdropper. Nothing else of a connection is read before.

use ringpull_base::Secret;
use ringpull_base::secret::CODE_BYTES;

const NONCE_BYTES: usize = 16;

/// The length of rank 0's first message.
pub(super) const CHALLENGE_BYTES: usize = NONCE_BYTES;
/// The length of the other rank's answer: its rank, its attempts, the frames it has received, its port, its
/// nonce, its code.
pub(super) const HELLO_BYTES: usize = 4 + 4 + 8 + 2 + NONCE_BYTES + CODE_BYTES;
/// The length of rank 0's answer to that: the frames it has received, its code.
pub(super) const WELCOME_BYTES: usize = 8 + CODE_BYTES;

/// Random bytes that are used once.
pub(super) type Nonce = [u8; NONCE_BYTES];

/// The greeting of a rank to rank 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) rank: u32,
    /// The number of times that it has connected, this time included.
    pub(super) attempt: u32,
    /// The number of frames that it has received on earlier connections of this job.
    pub(super) received: u64,
    /// A port of its host that is open as long as its process lives.
    pub(super) port: u16,
}

impl Hello {
    /// Returns the answer to rank 0's challenge.
    pub(super) fn encode(&self, secret: &Secret, challenge: &Nonce, nonce: &Nonce) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..4].copy_from_slice(&self.rank.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.attempt.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.received.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.port.to_le_bytes());
        bytes[18..18 + NONCE_BYTES].copy_from_slice(nonce);
        let (said, code) = bytes.split_at_mut(HELLO_BYTES - CODE_BYTES);
        code.copy_from_slice(&secret.code("hello", &[said, challenge]));
        bytes
    }

    /// Reads such an answer. Returns `None` if it does not prove the secret.
    pub(super) fn decode(bytes: &[u8; HELLO_BYTES], secret: &Secret, challenge: &Nonce) -> Option<(Self, Nonce)> {
        let (said, code) = bytes.split_at(HELLO_BYTES - CODE_BYTES);
        if !secret.is_code(code, "hello", &[said, challenge]) {
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
}

/// Returns rank 0's answer to the other's nonce, with the number of frames that it has received.
pub(super) fn welcome(secret: &Secret, received: u64, challenge: &Nonce, nonce: &Nonce) -> [u8; WELCOME_BYTES] {
    let mut bytes = [0; WELCOME_BYTES];
    let said = received.to_le_bytes();
    bytes[..8].copy_from_slice(&said);
    bytes[8..].copy_from_slice(&secret.code("welcome", &[&said, challenge, nonce]));
    bytes
}

/// Returns the number of frames that rank 0 has received, if its answer proves the secret.
pub(super) fn read_welcome(
    bytes: &[u8; WELCOME_BYTES],
    secret: &Secret,
    challenge: &Nonce,
    nonce: &Nonce,
) -> Option<u64> {
    let (said, code) = bytes.split_at(8);
    let is_proved = secret.is_code(code, "welcome", &[said, challenge, nonce]);
    is_proved.then(|| said.try_into().ok().map(u64::from_le_bytes))?
}

#[cfg(test)]
mod tests {
    use ringpull_base::secret::random;

    use super::*;

    #[test]
    fn both_ends_prove_the_secret_and_nothing_of_it_can_be_used_again() {
        let [secret, other] = [(), ()].map(|()| Secret::new_random().unwrap());
        let [challenge, answer, another]: [Nonce; 3] = [(), (), ()].map(|()| random().unwrap());
        let hello = Hello { rank: 3, attempt: 2, received: 7, port: 4711 };
        let bytes = hello.encode(&secret, &challenge, &answer);
        assert_eq!(Hello::decode(&bytes, &secret, &challenge), Some((hello, answer)));
        assert_eq!(Hello::decode(&bytes, &secret, &another), None, "a replay");
        assert_eq!(Hello::decode(&bytes, &other, &challenge), None, "another job");
        for index in 0..HELLO_BYTES {
            let mut changed = bytes;
            changed[index] ^= 1;
            assert_eq!(Hello::decode(&changed, &secret, &challenge), None, "byte {index} changed");
        }
        let bytes = welcome(&secret, 9, &challenge, &answer);
        assert_eq!(read_welcome(&bytes, &secret, &challenge, &answer), Some(9));
        assert_eq!(read_welcome(&bytes, &secret, &challenge, &another), None, "a replay");
        assert_eq!(read_welcome(&bytes, &other, &challenge, &answer), None, "another job");
    }
}
