//! The messages of the control star, for the fuzz targets. Only in builds of `cargo fuzz`.

use super::messages::ControlMessage;

/// Decodes `bytes` as a control message. If that succeeds, encodes the message, decodes it again and compares
/// the two.
///
/// # Panics
///
/// If the two messages differ.
pub fn note(bytes: &[u8]) {
    let write = |note: &ControlMessage| postcard::to_stdvec(note).expect("control messages are plain data");
    let Ok(read) = postcard::from_bytes::<ControlMessage>(bytes) else { return };
    let written = write(&read);
    let again = postcard::from_bytes::<ControlMessage>(&written).expect("what was written is read");
    assert_eq!(write(&again), written);
}
