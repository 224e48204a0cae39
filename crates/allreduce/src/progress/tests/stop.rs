//! Ranks that stop at the same step because one of them wants to.

use ringpull_base::Error;
use ringpull_base::config::Config;

use crate::progress::engine::Engine;

#[test]
fn ranks_that_nothing_else_keeps_together_stop_at_the_same_call() {
    let engines = Engine::in_process(3, &Config::default()).unwrap();
    // Rank 2 wants to stop at its 5th call, rank 1 at its 3rd and later. Nothing else keeps them together.
    let wants = |rank: usize, call: u64| (rank == 2 && call == 5) || (rank == 1 && call >= 3);
    let calls: Vec<u64> = std::thread::scope(|scope| {
        let ranks = engines.iter().map(|engine| {
            scope.spawn(move || {
                (1..u64::MAX).find(|call| engine.should_stop(wants(engine.rank(), *call)).unwrap()).unwrap()
            })
        });
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(calls[0] >= 3 && calls.iter().all(|call| *call == calls[0]), "{calls:?}");
    // The answer stays true.
    assert!(engines.iter().all(|engine| engine.should_stop(false).unwrap()));
}

#[test]
fn a_rank_that_has_left_is_no_obstacle_and_a_fault_ends_the_wait() {
    let engines = Engine::in_process(2, &Config::default()).unwrap();
    std::thread::scope(|scope| {
        // Rank 1 has made three calls and leaves. Rank 0 makes three calls too, and wants to stop at the
        // last.
        let left = scope.spawn(|| {
            let calls: Vec<bool> = (0..3).map(|_| engines[1].should_stop(false).unwrap()).collect();
            engines[1].leave();
            calls
        });
        let last = [false, false, true].map(|wants| engines[0].should_stop(wants).unwrap());
        engines[0].leave();
        // Either both stop at the third call, or rank 1 was past it and neither stops.
        assert_eq!(left.join().unwrap(), last);
    });

    let engines = Engine::in_process(2, &Config::default()).unwrap();
    engines[1].fail(&Error::bug("it ends here"));
    let outcome = (0..u64::MAX).find_map(|_| engines[0].should_stop(true).err());
    assert!(outcome.unwrap().to_string().contains("it ends here"));
    assert!(engines[1].should_stop(false).is_err());
}
