//! Headers of the parameter servers' messages: decoding never panics, and a decoded message is encoded and
//! decoded again to equal bytes. (Bytes are compared, not values, because a NaN is not equal to itself.)
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringpull_ps::message::{FromScheduler, MAGIC, Reply, Request, ToScheduler, decode, encode};

fuzz_target!(|data: &[u8]| {
    let framed = [MAGIC.as_slice(), data].concat();
    for header in [data, &framed] {
        let encodings = [
            decode(header).map(|message: Request| encode(&message)),
            decode(header).map(|message: Reply| encode(&message)),
            decode(header).map(|message: ToScheduler| encode(&message)),
            decode(header).map(|message: FromScheduler| encode(&message)),
        ];
        for (which, encoded) in encodings.into_iter().enumerate() {
            let Some(encoded) = encoded else { continue };
            let again = match which {
                0 => decode(&encoded).map(|message: Request| encode(&message)),
                1 => decode(&encoded).map(|message: Reply| encode(&message)),
                2 => decode(&encoded).map(|message: ToScheduler| encode(&message)),
                _ => decode(&encoded).map(|message: FromScheduler| encode(&message)),
            };
            assert_eq!(again, Some(encoded));
        }
    }
});
