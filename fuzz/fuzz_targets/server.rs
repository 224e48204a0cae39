//! Runs a parameter server with any sequence of requests of a job's workers. Requests that do not fit are
//! dropped or are faults, and nothing panics. Requests go through the wire's encoding, as the server gets
//! them.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use ringpull_base::{DType, Key};
use ringpull_kernels::compress::{Codec, Compression, TopK};
use ringpull_kernels::optim::{Optimizer, Rule, State};
use ringpull_ps::message::{Place, Places, Request, PullTarget, WholePushes, decode, encode};
use ringpull_ps::server::{Output, Server};

#[derive(Arbitrary, Debug)]
struct ServerInput {
    workers: u8,
    is_sync: bool,
    /// If this is set, every rank's first request is an init that fits.
    init: Option<(u8, u8)>,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
struct Step {
    rank: u8,
    segment: bool,
    what: ServerAction,
    payload: PushedPayload,
}

#[derive(Arbitrary, Debug)]
enum PushedPayload {
    Any(Vec<u8>),
    /// The length of one value in bytes: a short one makes matching inputs likelier.
    Filled(u8, u8),
    /// Ids of units, given by the gaps between them, followed by bytes.
    Ids(Vec<u8>, u8),
}

#[derive(Arbitrary, Debug)]
enum ServerAction {
    Init {
        dtype: u8,
        shape: Vec<u64>,
        len_bytes: Count,
        unit_bytes: Count,
    },
    Push {
        round: Count,
        optimizer: Count,
        compression: Option<PushCoding>,
        has_reply: bool,
    },
    PushRows {
        round: Count,
        optimizer: Count,
        ids_bytes: Count,
    },
    Pull {
        rounds: Count,
        want: u8,
    },
    SetOptimizer {
        version: Count,
        oldest: Count,
        optimizer: PushedData,
    },
    WhoIsMissing {
        rounds: Count,
    },
    SetState {
        optimizer: Count,
        updates: u64,
        slots: Vec<u8>,
    },
    Flush,
    /// Of an elastic job: a worker is lost, its pushes are settled, another one comes.
    Lose {
        incarnation: u8,
    },
    Settle {
        completed: u8,
        rounds: Vec<u8>,
    },
    Join {
        incarnation: u8,
        after: u8,
    },
}

/// A number that is mostly small.
#[derive(Arbitrary, Debug)]
enum Count {
    Small(u8),
    Any(u64),
}

impl Count {
    fn number(&self) -> u64 {
        match self {
            Count::Small(number) => u64::from(*number % 17),
            Count::Any(number) => *number,
        }
    }
}

#[derive(Arbitrary, Debug)]
enum PushCoding {
    Fp16,
    Bf16,
    TwoBit(f32),
    Exact,
    OneBit(f32),
    TopK(f64, f32),
}

#[derive(Arbitrary, Debug)]
enum PushedData {
    Sgd(f64, bool),
    Adam([f64; 3]),
    Test,
    AdaGrad(f64),
    RmsProp([f64; 3], bool, Option<f64>),
    /// Factors of one key.
    Factors(f64, f64),
    Common { learning_rate: f64, weight_decay: f64, rescale_grad: f64, clip: Option<f64>, multi_precision: bool },
}

fuzz_target!(|input: ServerInput| {
    let workers = usize::from(input.workers) % 4 + 1;
    // The other bits of the number.
    let new = if input.workers >= 128 { Server::elastic } else { Server::new };
    let mut server = new(workers, input.is_sync);
    if let Some((dtype, len)) = input.init {
        for rank in 0..workers {
            let dtype = DType::ALL[usize::from(dtype) % DType::ALL.len()];
            let len_bytes = usize::from(len % 40) * dtype.size_bytes();
            let init = Request::Init {
                place: place(false),
                dtype,
                shape: vec![u64::from(len)],
                len_bytes: len_bytes as u64,
                unit_bytes: dtype.size_bytes() as u64,
                here: 1,
                spans: false,
            };
            handle(&mut server, workers, rank, &init, &vec![0; if rank == 0 { len_bytes } else { 0 }]);
        }
    }
    for (number, step) in input.steps.iter().enumerate() {
        let Some(request) = request(step, number as u64) else {
            change(&mut server, workers, usize::from(step.rank) % workers, &step.what);
            continue;
        };
        handle(&mut server, workers, usize::from(step.rank) % workers, &request, &payload(&step.payload));
    }
});

/// Tells an elastic server of a worker that was lost, or of a worker that has come.
fn change(server: &mut Server, workers: usize, rank: usize, what: &ServerAction) {
    let outputs = match what {
        ServerAction::Lose { incarnation } => {
            server.lose(rank, u32::from(*incarnation));
            Vec::new()
        }
        ServerAction::Settle { completed, rounds } => {
            let (completed, rounds) = (u64::from(*completed), rounds.iter().map(|round| u64::from(*round)).collect());
            server.settle(rank, &[(Key::from("w"), WholePushes { completed, rounds })].into())
        }
        ServerAction::Join { incarnation, after } => {
            server.meets(rank, u32::from(*incarnation));
            server.join(rank, u32::from(*incarnation), &[(Key::from("w"), u64::from(*after))].into())
        }
        _ => Vec::new(),
    };
    check(outputs, workers);
}

fn handle(server: &mut Server, workers: usize, rank: usize, request: &Request, payload: &[u8]) {
    let request = decode(&encode(request)).expect("what was encoded is decoded");
    check(server.handle(rank, request, payload.to_vec()), workers);
}

fn check(outputs: Vec<Output>, workers: usize) {
    for output in outputs {
        match output {
            Output::Reply { rank, reply, .. } => {
                assert!(rank < workers);
                encode(&reply);
            }
            Output::Fault(error) => assert!(!error.to_string().is_empty()),
            Output::Dropped(why) => assert!(!why.is_empty()),
        }
    }
}

fn place(is_other: bool) -> Place {
    Place { key: Key::from("w"), segment: u32::from(is_other) }
}

fn places(is_other: bool, rank: u8) -> Places {
    let first = u32::from(is_other);
    let segments = if rank & 64 == 0 { vec![first] } else { vec![first, 1] };
    Places { key: Key::from("w"), segments }
}

fn payload(payload: &PushedPayload) -> Vec<u8> {
    match payload {
        PushedPayload::Any(bytes) => bytes.clone(),
        PushedPayload::Filled(len, byte) => vec![*byte; usize::from(*len)],
        PushedPayload::Ids(ids, behind) => {
            let mut bytes: Vec<u8> = std::iter::once(0).chain(ids.iter().map(|gap| gap % 128)).collect();
            bytes.resize(bytes.len() + usize::from(*behind), 1);
            bytes
        }
    }
}

fn request(step: &Step, reply: u64) -> Option<Request> {
    let place = place(step.segment);
    let places = places(step.segment, step.rank);
    Some(match &step.what {
        ServerAction::Init { dtype, shape, len_bytes, unit_bytes } => Request::Init {
            place,
            dtype: DType::ALL[usize::from(*dtype) % DType::ALL.len()],
            shape: shape.clone(),
            len_bytes: len_bytes.number(),
            unit_bytes: unit_bytes.number(),
            here: 1,
            spans: step.rank >= 128,
        },
        ServerAction::Push { round, optimizer, compression, has_reply } => Request::Push {
            place,
            round: round.number(),
            optimizer: optimizer.number(),
            compression: compression.as_ref().map(coding),
            reply: has_reply.then_some((PullTarget::Value, reply)),
        },
        ServerAction::PushRows { round, optimizer, ids_bytes } => Request::PushRows {
            places,
            round: round.number(),
            optimizer: optimizer.number(),
            ids_bytes: ids_bytes.number(),
            word: Some(reply),
        },
        ServerAction::Pull { rounds, want } => {
            let want = [PullTarget::Value, PullTarget::Rows, PullTarget::Word, PullTarget::State][usize::from(*want) % 4];
            Request::Pull { places, rounds: rounds.number(), want, reply }
        }
        ServerAction::SetOptimizer { version, oldest, optimizer } => Request::SetOptimizer {
            version: version.number(),
            oldest: oldest.number(),
            optimizer: described(optimizer),
        },
        ServerAction::WhoIsMissing { rounds } => Request::WhoIsMissing { places, rounds: rounds.number(), reply },
        ServerAction::SetState { optimizer, updates, slots } => {
            let slots = slots.iter().map(|len| vec![0; usize::from(*len)]).collect();
            Request::SetState { place, optimizer: optimizer.number(), state: State { updates: *updates, slots }, reply }
        }
        ServerAction::Flush if step.segment => Request::Commit { key: place.key, round: reply % 4 },
        ServerAction::Flush => Request::Flush { reply },
        ServerAction::Lose { .. } | ServerAction::Settle { .. } | ServerAction::Join { .. } => return None,
    })
}

fn coding(coding: &PushCoding) -> Compression {
    match *coding {
        PushCoding::Fp16 => Compression::Codec(Codec::Fp16),
        PushCoding::Bf16 => Compression::Codec(Codec::Bf16),
        PushCoding::TwoBit(threshold) => Compression::Codec(Codec::TwoBit { threshold }),
        PushCoding::Exact => Compression::Codec(Codec::TwoBit { threshold: 0.5 }),
        PushCoding::OneBit(threshold) => Compression::Codec(Codec::OneBit { threshold }),
        PushCoding::TopK(ratio, momentum) => Compression::TopK(TopK { ratio, momentum }),
    }
}

fn described(optimizer: &PushedData) -> Optimizer {
    let plain = Optimizer::sgd(0.1);
    match *optimizer {
        PushedData::Sgd(momentum, nesterov) => Optimizer { rule: Rule::Sgd { momentum, nesterov }, ..plain },
        PushedData::Adam([beta1, beta2, epsilon]) => Optimizer { rule: Rule::Adam { beta1, beta2, epsilon }, ..plain },
        PushedData::Test => Optimizer { rule: Rule::Test, ..plain },
        PushedData::AdaGrad(eps) => Optimizer { rule: Rule::AdaGrad { eps }, ..plain },
        PushedData::RmsProp([gamma1, gamma2, epsilon], centered, clip_weights) => {
            Optimizer { rule: Rule::RmsProp { gamma1, gamma2, epsilon, centered, clip_weights }, ..plain }
        }
        PushedData::Factors(rate, decay) => {
            let of = |factor| [(place(false).key, factor)].into();
            Optimizer { lr_mult: of(rate), wd_mult: of(decay), ..plain }
        }
        PushedData::Common { learning_rate, weight_decay, rescale_grad, clip, multi_precision } => {
            Optimizer { learning_rate, weight_decay, rescale_grad, clip_gradient: clip, multi_precision, ..plain }
        }
    }
}
