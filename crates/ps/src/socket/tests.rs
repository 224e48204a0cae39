//! Sessions over real connections of this host, among nodes, strangers, and networks that break.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::time::Instant;

use proptest::prelude::*;

use ringpull_base::Secret;
use ringpull_base::strangers::GREETING;

use super::session::{Mail, Session};
use super::*;

const LIMITS: Limits =
    Limits { header: 1 << 10, payload: 4 << 20, waiting_bytes: 4 << 20, waiting: 64, unwritten_bytes: 1 << 20 };

fn secret(text: &str) -> Secret {
    Secret::within(&text.repeat(16)).unwrap()
}

fn listener(secret: Option<Secret>, bell: &Bell) -> (Listener, SocketAddr) {
    listener_on(Ipv4Addr::LOCALHOST.into(), secret, bell)
}

fn listener_on(ip: IpAddr, secret: Option<Secret>, bell: &Bell) -> (Listener, SocketAddr) {
    let bound = Bound::to(SocketAddr::from((ip, 0)), None).unwrap();
    let address = SocketAddr::from((ip, bound.port()));
    let admits = Box::new(|identity: &[u8]| identity.starts_with(b"node"));
    let door = Door { name: "the server".to_owned(), secret, admits, most: 4, limits: LIMITS };
    (bound.open(door, bell).unwrap(), address)
}

fn target(to: SocketAddr, identity: &[u8], secret: Option<Secret>) -> Target {
    let limits = Limits { unwritten_bytes: usize::MAX, ..LIMITS };
    Target { to, name: "the server".to_owned(), identity: identity.to_vec(), secret, limits }
}

/// Waits for `some`, for at most ten seconds.
fn until<T>(bell: &Bell, mut some: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = some() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "it does not come");
        bell.wait(Duration::from_millis(20));
    }
}

fn payload(number: usize) -> Vec<u8> {
    (0..number * 997 % 300_000).map(|at| (at * 31 + number) as u8).collect()
}

fn frame(number: usize) -> Frame {
    Frame { header: number.to_le_bytes().to_vec(), payload: payload(number) }
}

/// Sends `count` frames from each end to the other and checks what arrives.
fn exchange(listener: &Listener, server_bell: &Bell, connection: &Connection, bell: &Bell, count: usize) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..count {
                let (identity, got) = until(server_bell, || listener.receive());
                assert_eq!(identity, b"node 1");
                assert!(got == frame(number), "frame {number}");
                assert!(listener.send(b"node 1", got));
            }
        });
        let (mut sent, mut received) = (0, 0);
        while received < count {
            while sent < count && connection.has_room(8) {
                assert!(connection.send(frame(sent)));
                sent += 1;
            }
            let got = until(bell, || connection.receive());
            assert!(got == frame(received), "frame {received} came back as another");
            received += 1;
        }
    });
}

#[test]
fn frames_arrive_in_order_and_whole() {
    for (secret, ip) in [(None, IpAddr::from(Ipv4Addr::LOCALHOST)), (Some(secret("abc")), Ipv6Addr::LOCALHOST.into())] {
        if TcpListener::bind((ip, 0)).is_err() {
            println!("skipped: this host has no {ip}");
            continue;
        }
        let (bell, server_bell) = (Bell::default(), Bell::default());
        let (listener, address) = listener_on(ip, secret.clone(), &server_bell);
        let connection = Connection::open(target(address, b"node 1", secret), &bell).unwrap();
        exchange(&listener, &server_bell, &connection, &bell, 300);
        connection.close(Duration::from_secs(5));
        assert_eq!(until(&server_bell, || listener.event()), Event::Disconnected);
        assert!(!listener.send(b"node 1", frame(1)), "it has left");
    }
}

#[test]
fn what_was_sent_before_a_close_arrives() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(None, &server_bell);
    let connection = Connection::open(target(address, b"node 1", None), &bell).unwrap();
    for number in 0..40 {
        connection.send(frame(number));
    }
    // Who closes waits until its peer has read.
    std::thread::scope(|scope| {
        scope.spawn(|| connection.close(Duration::from_secs(10)));
        for number in 0..40 {
            assert!(until(&server_bell, || listener.receive()).1 == frame(number));
        }
    });
}

#[test]
fn nodes_with_other_secrets_are_refused_and_both_ends_know_why() {
    for (server, client, said) in [
        (Some("a"), Some("b"), "another secret"),
        (Some("a"), None, "this node has none"),
        (None, Some("b"), "it has no secret"),
    ] {
        let (bell, server_bell) = (Bell::default(), Bell::default());
        let (listener, address) = listener(server.map(secret), &server_bell);
        let connection = Connection::open(target(address, b"node 1", client.map(secret)), &bell).unwrap();
        connection.send(frame(3));
        let Event::Refused(error) = until(&bell, || connection.event()) else { panic!("it was admitted") };
        let error = error.to_string();
        assert!(error.contains(said) && error.contains("RINGPULL_SECRET"), "{error}");
        assert!(listener.receive().is_none() && listener.event().is_none());
    }
}

#[test]
fn a_server_without_the_secret_is_no_server() {
    // It says whatever a server says, and admits everybody.
    let foreign = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = foreign.local_addr().unwrap();
    let bell = Bell::default();
    let connection = Connection::open(target(to, b"node 1", Some(secret("a"))), &bell).unwrap();
    let (mut stream, _) = foreign.accept().unwrap();
    let mut hello = [0; 89];
    stream.read_exact(&mut hello).unwrap();
    let mut challenge = [7; 40];
    challenge[..7].copy_from_slice(b"RPULLS\x01");
    challenge[7] = hello[7];
    stream.write_all(&challenge).unwrap();
    let mut proof = [0; 41];
    stream.read_exact(&mut proof).unwrap();
    stream.write_all(&[0; 41]).unwrap();
    assert!(matches!(until(&bell, || connection.event()), Event::Refused(_)));
}

#[test]
fn a_proof_that_was_overheard_is_refused() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(Some(secret("a")), &server_bell);
    let spy = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = spy.local_addr().unwrap();
    let connection = Connection::open(target(to, b"node 1", Some(secret("a"))), &bell).unwrap();
    let (mut client, _) = spy.accept().unwrap();
    let mut server = TcpStream::connect(address).unwrap();
    let (mut hello, mut challenge, mut proof, mut verdict) = ([0; 89], [0; 40], [0; 41], [0; 41]);
    client.read_exact(&mut hello).unwrap();
    server.write_all(&hello).unwrap();
    server.read_exact(&mut challenge).unwrap();
    client.write_all(&challenge).unwrap();
    client.read_exact(&mut proof).unwrap();
    drop((client, server, spy));
    // The same bytes once more: the server's challenge is another.
    let mut again = TcpStream::connect(address).unwrap();
    again.write_all(&hello).unwrap();
    again.read_exact(&mut challenge).unwrap();
    again.write_all(&proof).unwrap();
    again.read_exact(&mut verdict).unwrap();
    assert_eq!(verdict[0], 1, "the wrong secret");
    assert!(listener.receive().is_none());
    drop(connection);
}

#[test]
fn strangers_of_every_kind_delay_nobody_and_leave_nothing() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(Some(secret("a")), &server_bell);
    let mut strangers = Vec::new();
    for kind in 0..200 {
        let said: &[u8] = match kind % 4 {
            0 => &[],
            1 => b"RPU",
            2 => b"RPULLC\x01\x01 half of a hello",
            _ => b"GET / HTTP/1.1\r\n\r\n",
        };
        // Who comes when too many are there is turned away, perhaps before he knows that he is connected.
        let told = TcpStream::connect(address).and_then(|mut stranger| stranger.write_all(said).map(|()| stranger));
        strangers.extend(told);
    }
    let start = Instant::now();
    let connection = Connection::open(target(address, b"node 1", Some(secret("a"))), &bell).unwrap();
    exchange(&listener, &server_bell, &connection, &bell, 10);
    assert!(start.elapsed() < GREETING / 2, "{:?}", start.elapsed());
}

/// Not an end, which would say that the listener's process is gone: a node gives up after less than two
/// seconds of these.
#[test]
fn who_is_crowded_out_by_strangers_has_some_time_and_meets_a_broken_connection() {
    let (_listener, address) = listener(Some(secret("a")), &Bell::default());
    let said = |kind: io::ErrorKind, stream: &TcpStream| {
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        (&mut { stream }).read(&mut [0; 1]).is_err_and(|cause| cause.kind() == kind)
    };
    let first = TcpStream::connect(address).unwrap();
    let begun = Instant::now();
    let mut crowd = Vec::new();
    while !said(io::ErrorKind::ConnectionReset, &first) {
        assert!(said(io::ErrorKind::WouldBlock, &first) && begun.elapsed() < GREETING / 2);
        // Those that come too soon are turned away, in the same way.
        crowd.extend((0..100).filter_map(|_| TcpStream::connect(address).ok()));
    }
    assert!(begun.elapsed() >= Duration::from_millis(100), "{:?}", begun.elapsed());
}

#[test]
fn a_node_that_sends_more_than_was_agreed_is_cut_off() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(None, &server_bell);
    let connection = Connection::open(target(address, b"node 1", None), &bell).unwrap();
    connection.send(Frame { header: vec![0; LIMITS.header + 1], payload: Vec::new() });
    assert_eq!(until(&server_bell, || listener.event()), Event::Disconnected);
    assert_eq!(until(&bell, || connection.event()), Event::Disconnected);
    assert!(listener.receive().is_none());
}

/// The listener answers each frame with much more, and the peer takes none of it.
#[test]
fn a_peer_that_asks_and_does_not_read_is_not_read_any_more() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(None, &server_bell);
    let connection = Connection::open(target(address, b"node 1", None), &bell).unwrap();
    let (mut sent, mut answered) = (0, 0);
    let mut quiet = Instant::now();
    // What has been taken by nobody fills the peer's memory, then the sockets, and then the limit holds.
    while quiet.elapsed() < Duration::from_secs(1) {
        while connection.has_room(8) && sent < 3000 {
            connection.send(Frame { header: Vec::new(), payload: vec![1; 1 << 10] });
            sent += 1;
        }
        if let Some((identity, frame)) = listener.receive() {
            quiet = Instant::now();
            answered += 1;
            listener.send(&identity, Frame { header: Vec::new(), payload: frame.payload.repeat(64) });
        } else {
            server_bell.wait(Duration::from_millis(5));
        }
    }
    assert!(answered * (64 << 10) < 64 << 20, "{answered} answers to a peer that reads none");
    // It reads again, and all of it comes.
    let (mut got, mut last) = (0, Instant::now());
    while got < sent && last.elapsed() < Duration::from_secs(5) {
        while let Some((identity, frame)) = listener.receive() {
            listener.send(&identity, Frame { header: Vec::new(), payload: frame.payload.repeat(64) });
        }
        while connection.receive().is_some() {
            (got, last) = (got + 1, Instant::now());
        }
        bell.wait(Duration::from_millis(1));
    }
    assert_eq!(got, sent);
}

#[test]
fn names_that_no_node_has_or_another_has_are_refused() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(None, &server_bell);
    let first = Connection::open(target(address, b"node 1", None), &bell).unwrap();
    first.send(frame(1));
    until(&server_bell, || listener.receive());
    for name in [b"node 1", b"nobody"] {
        let second = Connection::open(target(address, name, None), &bell).unwrap();
        assert!(matches!(until(&bell, || second.event()), Event::Refused(_)));
    }
    exchange(&listener, &server_bell, &first, &bell, 0);
    first.send(frame(2));
    until(&server_bell, || listener.receive());
}

#[test]
fn a_peer_that_is_gone_is_noticed_by_both_ends() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(None, &server_bell);
    let network = Network::new(address);
    let connection = Connection::open(target(network.address, b"node 1", None), &bell).unwrap();
    exchange(&listener, &server_bell, &connection, &bell, 3);
    drop(network);
    assert_eq!(until(&server_bell, || listener.event()), Event::Disconnected);
    assert_eq!(until(&bell, || connection.event()), Event::Disconnected);
    assert!(!connection.send(frame(1)));
}

/// Every connection breaks after some hundred kilobytes, in the middle of whatever is on its way.
#[test]
fn connections_that_are_reset_again_and_again_lose_nothing_and_repeat_nothing() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(Some(secret("a")), &server_bell);
    let network = Network::new(address);
    let connection = Connection::open(target(network.address, b"node 1", Some(secret("a"))), &bell).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                number += 1;
                network.reset_after(100_000 + number * 70_001 % 900_000);
            }
        });
        exchange(&listener, &server_bell, &connection, &bell, 300);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(*network.resets.lock() > 5, "{} resets", network.resets.lock());
    assert!(listener.event().is_none() && connection.event().is_none());
}

/// After a reset nothing comes through for longer than a peer that has closed its connection is waited for.
#[test]
fn a_connection_that_is_reset_while_there_is_no_way_is_made_again_when_there_is_one() {
    let (bell, server_bell) = (Bell::default(), Bell::default());
    let (listener, address) = listener(Some(secret("a")), &server_bell);
    let network = Network::new(address);
    let connection = Connection::open(target(network.address, b"node 1", Some(secret("a"))), &bell).unwrap();
    exchange(&listener, &server_bell, &connection, &bell, 10);
    network.reset();
    let cut = Instant::now();
    while cut.elapsed() < session::RESUME * 2 {
        assert!(connection.send(Frame::from(vec![7])), "the node has given up");
        assert!(listener.event().is_none() && connection.event().is_none(), "after {:?}", cut.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    network.mend();
    let mut count = 0;
    while count < 10 {
        let (_, frame) = until(&server_bell, || listener.receive());
        assert_eq!(frame, Frame::from(vec![7]));
        count += 1;
    }
}

/// Who only writes meets the reset first, and the reader sees a connection that was closed.
#[test]
fn a_reset_that_the_writer_meets_is_no_end_of_the_peer() {
    for _ in 0..20 {
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = TcpStream::connect(socket.local_addr().unwrap()).unwrap();
        let far = socket.accept().unwrap().0;
        let session =
            Session::new(b"node".to_vec(), [1; 16], Ipv4Addr::LOCALHOST.into(), LIMITS, Mail::new(Bell::default()));
        let (_, near) = (session.replace_connection(), Arc::new(near));
        let (served, carried) = (Arc::clone(&session), Arc::clone(&near));
        let carrier = std::thread::spawn(move || served.carry(&carried, 1, 0));
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (writes, stopped) = (Arc::clone(&session), Arc::clone(&stop));
        let writer = std::thread::spawn(move || {
            while !stopped.load(std::sync::atomic::Ordering::Relaxed) && writes.send(Frame::from(vec![1; 100])) {
                std::thread::yield_now();
            }
        });
        rustix::net::connect_unspec(&far).unwrap();
        let end = carrier.join().unwrap();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        writer.join().unwrap();
        assert!(matches!(end, session::End::Broken), "{end:?}");
    }
}

/// What passes connections on to a server, and breaks them.
struct Network {
    address: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
    moved: Arc<Mutex<usize>>,
    resets: Mutex<usize>,
    is_down: Arc<Mutex<bool>>,
    /// Connections that were made while there is no way to the server.
    held: Arc<Mutex<Option<Vec<TcpStream>>>>,
}

impl Network {
    fn new(to: SocketAddr) -> Self {
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let network = Network {
            address: socket.local_addr().unwrap(),
            open: Arc::default(),
            moved: Arc::default(),
            resets: Mutex::default(),
            is_down: Arc::default(),
            held: Arc::default(),
        };
        let (open, moved, is_down) =
            (Arc::clone(&network.open), Arc::clone(&network.moved), Arc::clone(&network.is_down));
        let held = Arc::clone(&network.held);
        std::thread::spawn(move || {
            while let Ok((client, _)) = socket.accept() {
                if *is_down.lock() {
                    return;
                }
                if let Some(held) = held.lock().as_mut() {
                    held.push(client);
                    continue;
                }
                let server = TcpStream::connect(to).unwrap();
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (moved, held) = (Arc::clone(&moved), Arc::clone(&held));
                    open.lock().push(from.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let mut buffer = vec![0; 50_000];
                        while let Ok(count @ 1..) = from.read(&mut buffer) {
                            if to.write_all(&buffer[..count]).is_err() {
                                break;
                            }
                            *moved.lock() += count;
                        }
                        // A reset is to reach both ends as one.
                        if held.lock().is_none() {
                            to.shutdown(std::net::Shutdown::Both).ok();
                        }
                    });
                }
            }
        });
        network
    }

    /// Breaks what is open once this many more bytes have passed, or some time.
    fn reset_after(&self, bytes: usize) {
        let limit = *self.moved.lock() + bytes;
        let start = Instant::now();
        while *self.moved.lock() < limit && start.elapsed() < Duration::from_millis(100) {
            std::thread::yield_now();
        }
        self.cut();
        *self.resets.lock() += 1;
    }

    /// Resets what is open, at both ends, and lets nothing through until it is mended.
    fn reset(&self) {
        *self.held.lock() = Some(Vec::new());
        for stream in self.open.lock().drain(..) {
            rustix::net::connect_unspec(&stream).unwrap();
        }
    }

    fn mend(&self) {
        for stream in self.held.lock().take().unwrap() {
            rustix::net::connect_unspec(&stream).ok();
        }
    }

    fn cut(&self) {
        for stream in self.open.lock().drain(..) {
            stream.shutdown(std::net::Shutdown::Both).ok();
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        *self.is_down.lock() = true;
        TcpStream::connect(self.address).ok();
        self.cut();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever an admitted peer sends, the listener takes what is a frame and goes on.
    #[test]
    fn any_bytes_after_the_handshake_are_frames_or_the_end(
        bytes in proptest::collection::vec(prop_oneof![3 => Just(0u8), 2 => Just(1), 1 => any::<u8>()], 0..120),
        number in prop_oneof![Just(1u64), any::<u64>()],
    ) {
        let bell = Bell::default();
        let (listener, address) = listener(None, &bell);
        let mut peer = TcpStream::connect(address).unwrap();
        let mut hello = b"RPULLC\x01\0".to_vec();
        hello.extend([1; 32 + 16]);
        hello.push(4);
        hello.extend(b"node");
        hello.resize(89, 0);
        peer.write_all(&hello).unwrap();
        peer.read_exact(&mut [0; 40]).unwrap();
        peer.write_all(&[0; 41]).unwrap();
        let mut verdict = [0; 41];
        peer.read_exact(&mut verdict).unwrap();
        prop_assert_eq!(verdict[0], 0);
        let sent = peer.write_all(&[&number.to_le_bytes()[..], &bytes].concat());
        // A frame that was whole is handed on; what was not ends with the connection.
        peer.shutdown(std::net::Shutdown::Write).ok();
        peer.read_to_end(&mut Vec::new()).ok();
        while let Some((identity, frame)) = listener.receive() {
            prop_assert!(sent.is_ok() && identity == b"node" && frame.size() < bytes.len());
        }
        listener.close(Duration::ZERO);
    }
}
