//! The secret of a job, and the codes by which processes prove that they know it.

use hmac_sha256::HMAC;

use crate::{Error, Result};

/// The bytes of a code.
pub const CODE_BYTES: usize = 32;

/// The secret that only the processes of one job know. No `Debug` output shows it.
#[derive(Clone)]
pub struct Secret(String);

/// Returns new random bytes of the operating system.
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

    /// Returns a new secret of 32 random bytes, in hex.
    pub fn new_random() -> Result<Self> {
        let digits = random::<32>()?.into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
        Ok(Secret(digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()))
    }

    /// Returns the secret in `text`, without surrounding blanks such as a line feed at its end. If the length
    /// is invalid, returns the length as an error.
    pub fn within(text: &str) -> std::result::Result<Self, usize> {
        let text = text.trim();
        let length = text.chars().count();
        if Self::LENGTHS.contains(&length) { Ok(Secret(text.to_owned())) } else { Err(length) }
    }

    /// Returns the secret itself, for the environment of a process of the job, or for a message to it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// A code for `purpose` that cannot be made without the secret (HMAC-SHA256, RFC 2104). For one purpose
    /// each of `parts` has a fixed length, so that two different lists of parts never give one text.
    pub fn code(&self, purpose: &str, parts: &[&[u8]]) -> [u8; CODE_BYTES] {
        self.hash(purpose, parts).finalize()
    }

    /// Returns true if `code` is the [`Secret::code`] of this purpose and these parts. The time does not
    /// depend on where the two differ.
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
