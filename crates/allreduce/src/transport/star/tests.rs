//! Ranks as threads, over real sockets.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ringpull_base::strangers::GREETING;

use crate::transport::control::Event;

use super::*;

const PATIENCE: StartLimits = StartLimits { warn: Duration::from_secs(30), silence: Duration::from_secs(5) };

/// Returns rank 0's end and the other ranks' ends of a job of `size` ranks.
fn star(size: usize) -> (Control, Vec<Control>) {
    gathered(Hub::listen(true).unwrap(), size)
}

fn gathered(hub: Hub, size: usize) -> (Control, Vec<Control>) {
    let invitation = hub.invitation().unwrap();
    let leaves: Vec<_> = (1..size)
        .map(|rank| {
            let invitation = invitation.clone();
            std::thread::spawn(move || join(rank, size, &invitation, PATIENCE, &mut || Ok(())).unwrap())
        })
        .collect();
    let middle = hub.gather(size, PATIENCE, &mut || Ok(())).unwrap();
    (middle, leaves.into_iter().map(|leaf| leaf.join().unwrap()).collect())
}

fn next(control: &Control) -> Event {
    control.events().recv_timeout(PATIENCE.silence).unwrap()
}

#[test]
fn frames_arrive_in_order_and_an_end_is_noticed() {
    let (middle, mut leaves) = star(3);
    for n in 0..3u8 {
        leaves[0].send(0, &[n]).unwrap();
        middle.send(2, &[n]).unwrap();
    }
    for n in 0..3u8 {
        assert_eq!(next(&middle), Event::Frame { from: 1, bytes: vec![n] });
        assert_eq!(next(&leaves[1]), Event::Frame { from: 0, bytes: vec![n] });
    }
    leaves[0].send(0, b"last words").unwrap();
    drop(leaves.remove(0));
    assert_eq!(next(&middle), Event::Frame { from: 1, bytes: b"last words".to_vec() });
    assert_eq!(next(&middle), Event::Gone { rank: 1, cause: "its process ended".to_owned() });
    drop(middle);
    assert!(matches!(next(&leaves[0]), Event::Gone { rank: 0, .. }));
}

#[test]
fn strangers_keep_nobody_waiting_and_are_turned_away() {
    let hub = Hub::listen(true).unwrap();
    let (invitation, address) = (hub.invitation().unwrap(), hub.addresses().unwrap()[0]);
    let mut silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    let peer = std::thread::spawn(move || join(1, 2, &invitation, PATIENCE, &mut || Ok(())).unwrap());
    let begun = Instant::now();
    let middle = hub.gather(2, PATIENCE, &mut || Ok(())).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let leaf = peer.join().unwrap();
    let mut loud = TcpStream::connect(address).unwrap();
    loud.write_all(&[7; 100]).unwrap();
    loud.set_read_timeout(Some(PATIENCE.silence)).unwrap();
    assert!(matches!(loud.read(&mut [0; 1]), Ok(0) | Err(_)), "it was closed");
    leaf.send(0, b"of the job").unwrap();
    assert_eq!(next(&middle), Event::Frame { from: 1, bytes: b"of the job".to_vec() });
    silent.clear();
}

#[test]
fn a_rank_0_that_accepts_late_is_waited_for() {
    let limits = StartLimits { silence: Duration::from_secs(20), ..PATIENCE };
    let hub = Hub::listen(true).unwrap();
    let invitation = hub.invitation().unwrap();
    let peer = std::thread::spawn(move || join(1, 2, &invitation, limits, &mut || Ok(())).unwrap());
    // The other rank gives up its first connection meanwhile.
    std::thread::sleep(GREETING + Duration::from_millis(500));
    let middle = hub.gather(2, limits, &mut || Ok(())).unwrap();
    let leaf = peer.join().unwrap();
    leaf.send(0, b"of the job").unwrap();
    assert_eq!(next(&middle), Event::Frame { from: 1, bytes: b"of the job".to_vec() });
}

#[test]
fn a_connection_that_is_reset_costs_nothing() {
    let (middle, leaves) = star(2);
    let mut sent = (0u32, 0u32);
    let mut seen = (0u32, 0u32);
    for round in 0..20 {
        for _ in 0..100 {
            leaves[0].send(0, &sent.0.to_le_bytes()).unwrap();
            middle.send(1, &sent.1.to_le_bytes()).unwrap();
            sent = (sent.0 + 1, sent.1 + 1);
        }
        // The connection is reset by one of its ends, with all data on its way.
        let (control, peer) = if round % 2 == 0 { (&middle, 1) } else { (&leaves[0], 0) };
        // The connection may not be made again yet.
        while !control.break_connection(peer) {
            std::thread::yield_now();
        }
        while seen.0 < sent.0 {
            assert_eq!(next(&middle), Event::Frame { from: 1, bytes: seen.0.to_le_bytes().to_vec() });
            seen.0 += 1;
        }
        while seen.1 < sent.1 {
            assert_eq!(next(&leaves[0]), Event::Frame { from: 0, bytes: seen.1.to_le_bytes().to_vec() });
            seen.1 += 1;
        }
    }
    assert!(middle.events().try_recv().is_err());
}

#[test]
fn once_all_are_there_only_the_interface_they_came_over_is_listened_on() {
    let hub = Hub::listen(false).unwrap();
    let addresses = hub.addresses().unwrap();
    assert!(addresses.iter().any(|address| address.ip().is_loopback()), "{addresses:?}");
    let is_open = |address: &SocketAddr| TcpStream::connect(address).is_ok();
    assert!(addresses.iter().all(is_open), "{addresses:?}");
    let (middle, leaves) = gathered(hub, 2);
    let begun = Instant::now();
    while addresses.iter().filter(|address| is_open(address)).count() > 1 {
        assert!(begun.elapsed() < PATIENCE.silence, "of {addresses:?}");
        std::thread::yield_now();
    }
    while !leaves[0].break_connection(0) {}
    leaves[0].send(0, b"over the same interface again").unwrap();
    assert!(matches!(next(&middle), Event::Frame { from: 1, .. }));
}

#[test]
fn a_peer_that_takes_nothing_blocks_nobody_and_is_named() {
    // The peer's system accepts the connection, and nobody answers.
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (to, settings) = (vec![socket.local_addr().unwrap()], settings(PATIENCE.silence));
    let (name, identity) = ("rank 0".to_owned(), identity(1));
    let target = DialTarget { to, name, identity, secret: None, settings, has_port: false };
    let sink = StarSink::new(1).0;
    let links = Links { endpoint: Endpoint::connect(target, sink.clone()).unwrap().0, sink };
    let frame = vec![0; 32 << 20];
    let error = (0..9).find_map(|_| links.send(0, &frame).err()).unwrap().to_string();
    assert!(error.contains("rank 0 has not taken"), "{error}");
    let error = links.send(0, &vec![0; (64 << 20) + 1]).unwrap_err().to_string();
    assert!(error.contains("67108865 bytes"), "{error}");
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let limits = StartLimits { silence: Duration::from_millis(10), ..PATIENCE };
    let error = Hub::listen(true).unwrap().gather(3, limits, &mut || Ok(())).err().unwrap().to_string();
    assert!(error.contains("rank(s) [1, 2]"), "{error}");
}

#[test]
fn a_rank_that_came_and_is_gone_ends_the_wait_for_the_others() {
    let hub = Hub::listen(true).unwrap();
    let invitation = hub.invitation().unwrap();
    let leaf = std::thread::spawn(move || drop(join(1, 3, &invitation, PATIENCE, &mut || Ok(())).unwrap()));
    let begun = Instant::now();
    let error = hub.gather(3, PATIENCE, &mut || Ok(())).err().unwrap().to_string();
    assert!(error.contains("rank 1") && error.contains("its process ended"), "{error}");
    assert!(begun.elapsed() < PATIENCE.silence, "{:?}", begun.elapsed());
    leaf.join().unwrap();
}

#[test]
fn who_reads_no_events_is_stopped_by_a_loss_before_or_after_it_asked() {
    let (middle, mut leaves) = star(3);
    let stop = Arc::new(AtomicBool::new(false));
    let is_set = |stop: &AtomicBool| {
        let begun = Instant::now();
        while !stop.load(Ordering::Acquire) && begun.elapsed() < PATIENCE.silence {
            std::thread::yield_now();
        }
        stop.load(Ordering::Acquire)
    };
    middle.stop_on_loss(Some(&stop));
    drop(leaves.remove(0));
    assert!(is_set(&stop));
    let later = Arc::new(AtomicBool::new(false));
    middle.stop_on_loss(Some(&later));
    assert!(later.load(Ordering::Acquire));
    // Later losses do not set the flag.
    stop.store(false, Ordering::Release);
    middle.stop_on_loss(None);
    drop(leaves.remove(0));
    assert!(
        matches!(next(&middle), Event::Gone { rank: 1, .. }) && matches!(next(&middle), Event::Gone { rank: 2, .. })
    );
    assert!(!stop.load(Ordering::Acquire));
}
