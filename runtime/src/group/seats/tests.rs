use super::seats::Seats;

#[test]
fn a_second_thread_of_a_rank_waits_its_turn_and_never_takes_another_answer() {
    let mut seats = Seats::new(2);
    assert!(seats.sit(0, &"a"));
    assert!(!seats.sit(0, &"b"), "the first thread sits there");
    assert_eq!((seats.asking(), seats.complete()), (1, None));
    assert!(seats.sit(1, &"a"));
    assert_eq!(seats.complete(), Some(vec!["a", "a"]));
    seats.answer(&"memory of a");
    assert_eq!(seats.complete(), None);
    // Rank 1 takes its answer and comes back at once: rank 0's answer still lies there.
    assert_eq!(seats.take(1), Some("memory of a"));
    assert!(seats.sit(1, &"b"));
    assert!(!seats.sit(0, &"b"), "an answer lies there");
    assert_eq!(seats.take(1), None);
    assert_eq!(seats.take(0), Some("memory of a"));
    assert!(seats.sit(0, &"b"));
    assert_eq!(seats.complete(), Some(vec!["b", "b"]));
}
