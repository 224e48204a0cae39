//! Files of optimizer states: any bytes are states or an error, and what is read is written and read again as
//! the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringpull::internal::SavedStates;

const MAGIC: &[u8] = b"ringpull-states2";

fuzz_target!(|data: &[u8]| {
    assert!(SavedStates::from_bytes(data).is_ok() <= data.starts_with(MAGIC));
    let Ok(states) = SavedStates::from_bytes(&[MAGIC, data].concat()) else { return };
    let written = states.to_bytes().expect("what was read can be written");
    let again = SavedStates::from_bytes(&written).expect("what was written is read");
    // Bytes and not values are compared: a NaN is not itself.
    assert_eq!(again.to_bytes().expect("it can be written again"), written);
});
