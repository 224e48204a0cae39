//! The parts of this layer that the fuzz targets run: the first bytes of a control connection, and its frames
//! over connections that break ([`Link`]). Only in builds of `cargo fuzz`.

pub use super::wire::link::{Link, Move};

use ringpull_base::Secret;

use super::greeting::{self, HELLO_BYTES, Hello, Nonce, WELCOME_BYTES};

/// Reads `bytes` as a greeting and as its answer, and reads a greeting that was written. Bytes without proof
/// of the secret must be refused.
///
/// # Panics
///
/// If bytes that do not prove the secret are taken for a greeting, or a greeting is not read as it was
/// written.
pub fn greet(bytes: &[u8]) {
    let secret = Secret::within(&"5a".repeat(32)).expect("64 characters");
    let mut padded = [0; HELLO_BYTES];
    let count = bytes.len().min(HELLO_BYTES);
    padded[..count].copy_from_slice(&bytes[..count]);
    let number = |at: usize| u32::from_le_bytes(padded[at..at + 4].try_into().expect("four bytes"));
    let hello = Hello {
        rank: number(0),
        attempt: number(4),
        received: u64::from(number(8)) << 32 | u64::from(number(12)),
        port: number(16) as u16,
    };
    let (challenge, nonce): (Nonce, Nonce) = ([padded[20]; 16], [padded[21]; 16]);
    let mut written = hello.encode(&secret, &challenge, &nonce);
    assert_eq!(Hello::decode(&padded, &secret, &challenge), None, "nobody makes a code by chance");
    assert_eq!(Hello::decode(&written, &secret, &challenge), Some((hello, nonce)));
    let at = usize::from(padded[22]) % HELLO_BYTES;
    if padded[23] != 0 {
        written[at] ^= padded[23];
        assert_eq!(Hello::decode(&written, &secret, &challenge), None, "byte {at} was changed");
    }
    let mut answer = greeting::welcome(&secret, hello.received, &challenge, &nonce);
    assert_eq!(greeting::read_welcome(&answer, &secret, &challenge, &nonce), Some(hello.received));
    answer.copy_from_slice(&padded[..WELCOME_BYTES]);
    assert_eq!(greeting::read_welcome(&answer, &secret, &challenge, &nonce), None);
}
