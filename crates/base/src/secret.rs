//! The secret of a job, and the proof of its knowledge between processes.

use hmac_sha256::HMAC;

use crate::{Error, Result};

/// The bytes of a code.
pub const CODE_BYTES: usize = 32;

/// The secret that only the processes of one job know. No `Debug` output shows it.
#[derive(Clone)]
pub struct Secret(String);

/// Random bytes of the operating system, which nobody has seen before.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            .map_err(|cause| Error::io("read", "the system's random numbers", &cause.into()))?;
    }
    Ok(bytes)
}

impl Secret {
    /// The valid lengths of a secret, in characters.
    pub const LENGTHS: std::ops::RangeInclusive<usize> = 16..=4096;

    /// A new one: 32 random bytes, in hex.
    pub fn new_random() -> Result<Self> {
        let digits = random::<32>()?.into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
        Ok(Secret(digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()))
    }

    /// The secret in `text`, without the blanks around it that a file's last line ends with; or its length if
    /// that cannot be one.
    pub fn within(text: &str) -> std::result::Result<Self, usize> {
        let text = text.trim();
        let length = text.chars().count();
        if Self::LENGTHS.contains(&length) { Ok(Secret(text.to_owned())) } else { Err(length) }
    }

    /// The secret itself: for the environment of a process of the same job, or a message to it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// A code for `purpose` that cannot be made without the secret (HMAC-SHA256, RFC 2104). Each of `parts`
    /// has a fixed length for one purpose, so no two lists of parts are one text.
    pub fn code(&self, purpose: &str, parts: &[&[u8]]) -> [u8; CODE_BYTES] {
        self.hash(purpose, parts).finalize()
    }

    /// Returns true if `code` is [`Secret::code`] of the same. It takes as long wherever the two differ.
    pub fn is_code(&self, code: &[u8], purpose: &str, parts: &[&[u8]]) -> bool {
        code.try_into().is_ok_and(|code| self.hash(purpose, parts).finalize_verify(code))
    }

    fn hash(&self, purpose: &str, parts: &[&[u8]]) -> HMAC {
        let mut hash = HMAC::new(&self.0);
        hash.update(purpose);
        parts.iter().for_each(|part| hash.update(part));
        hash
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Secret(not shown)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_secret_is_32_bytes_in_hex_and_no_second_one_is_alike() {
        let [one, other] = [(), ()].map(|()| Secret::new_random().unwrap());
        assert!(one.reveal().len() == 64 && one.reveal().chars().all(|digit| digit.is_ascii_hexdigit()));
        assert_ne!(one.reveal(), other.reveal());
        assert_eq!(format!("{one:?}"), "Secret(not shown)");
    }

    #[test]
    fn a_code_is_of_one_secret_one_purpose_and_all_parts() {
        let [one, other] = [(), ()].map(|()| Secret::new_random().unwrap());
        let code = one.code("hello", &[b"12", b"345"]);
        assert!(one.is_code(&code, "hello", &[b"12", b"345"]));
        assert!(!other.is_code(&code, "hello", &[b"12", b"345"]));
        assert!(!one.is_code(&code, "hallo", &[b"12", b"345"]));
        assert!(!one.is_code(&code, "hello", &[b"12", b"344"]));
        assert!(!one.is_code(&code[1..], "hello", &[b"12", b"345"]));
    }
}
