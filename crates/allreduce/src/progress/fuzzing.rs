//! What the fuzz targets try of this layer beside its public states: what ranks tell each other. Only in
//! builds of `cargo fuzz`.

use super::messages::ControlMessage;

/// Reads `bytes` as a message of the control connections. What is read is written and read again as the same.
///
/// # Panics
///
/// If it is not.
pub fn note(bytes: &[u8]) {
    let write = |note: &ControlMessage| postcard::to_stdvec(note).expect("control messages are plain data");
    let Ok(read) = postcard::from_bytes::<ControlMessage>(bytes) else { return };
    let written = write(&read);
    let again = postcard::from_bytes::<ControlMessage>(&written).expect("what was written is read");
    assert_eq!(write(&again), written);
}
