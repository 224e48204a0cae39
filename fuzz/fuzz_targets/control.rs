//! Connections between processes of a job: strangers' first messages are accepted only with the job's secret,
//! messages between ranks are decoded without a panic and encoded again without a change, and frames arrive
//! once and in order over connections that break anywhere.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringpull_allreduce::progress::fuzzing::note;
use ringpull_session::tests::greetings::greet;
use ringpull_session::tests::link::{Link, LinkEvent};

fuzz_target!(|data: &[u8]| {
    let Some((which, data)) = data.split_first() else { return };
    match which % 4 {
        0 => greet(data),
        1 => note(data),
        _ => link(data),
    }
});

/// Each byte is a move. Its high bits are the number of bytes that move.
fn link(data: &[u8]) {
    let mut link = Link::default();
    for byte in data.iter().take(400) {
        let (end, most) = (usize::from(byte & 1), usize::from(byte >> 4));
        let most = if most == 15 { usize::MAX } else { most + 1 };
        link.make(match byte >> 1 & 7 {
            0 | 1 => LinkEvent::Send(end),
            2 | 3 => LinkEvent::Write(end, most),
            4 | 5 => LinkEvent::Arrive(end, most),
            6 if end == 0 => LinkEvent::Break,
            6 => LinkEvent::Greet,
            _ if end == 0 => LinkEvent::Welcome,
            _ => LinkEvent::Confirm(most & 1),
        });
    }
    link.settle();
}
