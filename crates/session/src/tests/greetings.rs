//! Reads any bytes as the first bytes of a connection, and as frames.

use std::io::ErrorKind;

use ringpull_base::Secret;

use crate::Limits;
use crate::frames::{Frames, Incoming};
use crate::handshake::{CHALLENGE, Client, Examination, HELLO, Hello, PROOF, Resumption, VERDICT, Verdict};

/// Reads `bytes` as the messages of a client, of a server, and of an admitted peer, and runs a handshake
/// between a client and a server. Bytes without proof of the secret must be refused.
///
/// # Panics
///
/// If bytes that do not prove the secret are taken for a greeting, or a greeting is not read as it was
/// written.
pub fn greet(bytes: &[u8]) {
    let secret = Secret::within(&"5a".repeat(32)).expect("64 characters");
    let secret = Some(&secret);
    let mut padded = [0; 96];
    let count = bytes.len().min(96);
    padded[..count].copy_from_slice(&bytes[..count]);
    let resumption = Resumption {
        goes_on: padded[0] & 1 != 0,
        attempt: u32::from_le_bytes(padded[1..5].try_into().expect("four bytes")),
        received: u64::from_le_bytes(padded[5..13].try_into().expect("eight bytes")),
    };
    let identity = padded[16..16 + usize::from(padded[13]) % 33].to_vec();
    let wanted = padded[64..64 + usize::from(padded[61]) % 33].to_vec();
    let hello = Hello { session: [padded[14]; 16], port: u16::from(padded[15]) << 3, identity, wanted };
    let (mut client, said) = Client::new(&hello, secret, [1; 32]);
    let (mut server, mut reply) = (Examination::new([2; 32]), Vec::new());
    assert!(server.take(&said, secret, &mut reply).expect("a hello").is_none());
    let challenge: [u8; CHALLENGE] = reply[..].try_into().expect("a challenge");
    let mut proof = client.prove(&challenge, resumption).expect("a proof");
    let mut forged = Examination::new([2; 32]);
    forged.take(&said, secret, &mut reply).expect("a hello");
    proof[usize::from(padded[62]) % PROOF] ^= padded[63];
    let outcome = forged.take(&proof, secret, &mut reply);
    assert_eq!(outcome.is_ok(), padded[63] == 0, "a byte was changed");
    proof[usize::from(padded[62]) % PROOF] ^= padded[63];
    let proved = server.take(&proof, secret, &mut reply).expect("a proof").expect("all has been said");
    assert_eq!((&proved.hello, proved.resumption), (&hello, resumption));
    let answer = proved.answer(Verdict::Admitted(resumption.received), secret);
    assert_eq!(client.conclude(&answer).expect("a verdict"), resumption.received);

    let mut stranger = Examination::new([2; 32]);
    let mut rest = bytes;
    while let Some((piece, after)) = rest.split_at_checked(stranger.missing().min(rest.len()).min(HELLO)) {
        match stranger.take(piece, secret, &mut Vec::new()) {
            Ok(proved) => assert!(proved.is_none(), "nobody makes a code by chance"),
            Err(_) => break,
        }
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    let mut foreign = [0; VERDICT];
    foreign[..count.min(VERDICT)].copy_from_slice(&bytes[..count.min(VERDICT)]);
    assert!(client.conclude(&foreign).is_err(), "nobody makes a code by chance");
    frames(bytes);
}

/// Reads `bytes` as frames.
fn frames(bytes: &[u8]) {
    let limits = Limits { header: 64, payload: 1 << 20, waiting_bytes: 0, waiting: 0, unwritten_bytes: 0 };
    let (mut frames, mut incoming, mut left) = (Frames::default(), Incoming::default(), bytes);
    let mut read = |into: &mut Vec<u8>| {
        let count = left.len().min(into.capacity() - into.len()).min(7);
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        into.extend_from_slice(&left[..count]);
        left = &left[count..];
        Ok(count)
    };
    while let Ok(Some((prefix, frame))) = incoming.next(&limits, &mut read) {
        assert!(frame.size() < bytes.len());
        match frames.look_at(prefix) {
            Ok(true) => frames.receive(frame.size()),
            Ok(false) => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
proptest::proptest! {
    #[test]
    fn any_bytes_are_refused_and_read_as_far_as_they_are_frames(
        bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300),
        begins in proptest::bool::ANY,
    ) {
        greet(&if begins { [&b"RPULLC\x03\x01"[..], &bytes].concat() } else { bytes });
    }
}
