//! Files of optimizer states: any bytes are states or an error. States that were read are written and read
//! again without a change.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringpull::internal::SavedStates;

const MAGIC: &[u8] = b"ringpull-states2";

fuzz_target!(|data: &[u8]| {
    assert!(SavedStates::from_bytes(data).is_ok() <= data.starts_with(MAGIC));
    let Ok(states) = SavedStates::from_bytes(&[MAGIC, data].concat()) else { return };
    let written = states.to_bytes().expect("what was read can be written");
    let again = SavedStates::from_bytes(&written).expect("what was written is read");
    // Bytes are compared, not values, because a NaN is not equal to itself.
    assert_eq!(again.to_bytes().expect("it can be written again"), written);
});
