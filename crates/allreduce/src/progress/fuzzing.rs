//! The messages of the control star, for the fuzz targets. Only in builds of `cargo fuzz`.

use super::messages::ControlMessage;

/// Decodes `bytes` as a control message. A message that can be decoded is the same after it is encoded and
/// decoded again.
///
/// # Panics
///
/// If it differs.
pub fn note(bytes: &[u8]) {
    let write = |note: &ControlMessage| postcard::to_stdvec(note).expect("control messages are plain data");
    let Ok(read) = postcard::from_bytes::<ControlMessage>(bytes) else { return };
    let written = write(&read);
    let again = postcard::from_bytes::<ControlMessage>(&written).expect("what was written is read");
    assert_eq!(write(&again), written);
}
