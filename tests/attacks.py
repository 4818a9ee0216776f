"""What strangers, sites and servers have tried on fedvi, and the tests that fail if it works again.

A new attack gets a line here with its test. ``tests/unit/test_attacks.py`` looks whether each is there.
"""

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["ATTACKS"]

_SERVER = "tests/unit/server"
_WIRE = "tests/unit/transport"


ATTACKS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        # Files that run code.
        "a kind of a study that names a function: os:system": (
            "tests/integration/test_no_file_runs_code.py::"
            "test_a_study_that_names_code_is_refused_by_every_command_and_runs_nothing",
        ),
        "a kind, or a function, that a result, a plan or a ledger names": (
            "tests/integration/test_no_file_runs_code.py::"
            "test_no_mutated_file_starts_a_process_opens_a_socket_or_imports_a_module",
        ),
        # A site's own door.
        "a study without a guarantee, and no policy at the site": (
            "tests/unit/study/test_without_policy.py::"
            "test_every_study_without_a_guarantee_needs_the_flag_of_its_name_and_no_other",
            "tests/integration/test_site_door.py::"
            "test_without_a_policy_a_study_that_guarantees_nothing_is_answered_only_by_a_flag",
        ),
        "an open study whose solver adds noise of a known seed, under a policy that prices it": (
            "tests/unit/study/test_without_policy.py::"
            "test_a_policy_takes_no_open_study_for_a_private_one_because_its_solver_adds_noise",
        ),
        "a second ledger for life: a copied policy, another spelling of the name, a crash": (
            "tests/integration/test_site_door.py::"
            "test_a_policy_that_is_copied_renamed_or_moved_goes_on_with_what_was_spent",
            "tests/unit/store/test_life.py::test_a_site_that_was_renamed_does_not_start_from_0",
            "tests/unit/store/test_life.py::test_another_spelling_of_a_site_is_no_other_site",
            "tests/unit/store/test_life.py::"
            "test_an_empty_database_in_the_place_of_one_that_was_stored_is_refused",
            "tests/unit/store/test_life.py::"
            "test_a_ledger_beside_the_policy_that_cannot_be_read_is_not_taken_for_another_site_s",
        ),
        # Strangers' connections.
        "millions of empty fields in a header": (
            f"{_WIRE}/test_bounded.py::test_refusing_a_message_of_many_fields_makes_none_of_them",
            "tests/integration/test_strangers.py::"
            "test_bombs_of_a_site_that_is_let_in_are_refused_and_cost_little",
        ),
        "gzip bombs": (
            f"{_WIRE}/test_bounded.py::test_what_is_compressed_is_refused_with_what_to_do",
            "tests/integration/test_server_app.py::"
            "test_a_compressed_message_is_refused_unread_and_the_server_goes_on",
            "tests/integration/test_strangers.py::"
            "test_3000_idle_connections_and_36_bombs_keep_nobody_waiting",
        ),
        "thousands of bare connections": (
            f"{_SERVER}/test_door.py::"
            "test_silent_connections_of_many_addresses_drive_out_none_that_speaks",
            f"{_SERVER}/test_door.py::test_connections_leave_descriptors_to_everything_else",
            "tests/integration/test_strangers.py::test_an_attack_keeps_nobody_waiting",
        ),
        "thousands of TLS connections of a revoked certificate": (
            f"{_SERVER}/test_door.py::"
            "test_a_connection_that_is_refused_waits_again_and_is_closed_in_the_end",
            "tests/integration/test_strangers.py::"
            "test_connections_that_no_admitted_call_comes_over_are_closed",
        ),
        "idle connections in all places of the metrics": (
            "tests/integration/test_server_app.py::"
            "test_callers_that_hold_all_places_of_the_metrics_give_way_to_the_next",
        ),
        "half-open streams": (
            "tests/integration/test_server_identity.py::"
            "test_calls_whose_message_never_comes_take_no_places_of_others",
        ),
        "unfinished uploads": (
            "tests/integration/test_server_app.py::"
            "test_chunks_that_stop_coming_end_the_call_and_are_kept",
            f"{_SERVER}/test_uploads.py::test_another_answer_of_the_same_client_begins_anew",
            f"{_SERVER}/test_uploads.py::test_more_than_was_announced_is_refused",
        ),
        # Answers.
        "an answer that no declared records give: norms, counts, signs": (
            f"{_SERVER}/test_impossible_answers.py::"
            "test_an_answer_beyond_what_the_study_bounds_is_refused_and_the_others_are_folded",
            f"{_SERVER}/test_impossible_answers.py::"
            "test_what_is_bent_or_counted_the_wrong_way_is_refused_and_left_out",
            f"{_SERVER}/test_impossible_answers.py::"
            "test_of_sums_alone_the_sum_is_checked_and_an_impossible_one_is_given_up",
        ),
        "NaN, inf and wrong dtypes, shapes, names and prices": (
            "tests/integration/test_server_app.py::"
            "test_an_answer_that_is_wrong_is_refused_by_its_kind_and_the_server_goes_on",
            f"{_SERVER}/test_protocol.py::test_numbers_that_are_not_finite_do_not_travel",
        ),
        "shapes of 2⁴⁰": (
            f"{_WIRE}/test_codec.py::test_a_tensor_that_contradicts_itself_is_a_protocol_error",
            f"{_WIRE}/test_wire.py::test_a_field_that_is_wrong_is_named",
        ),
        "JSON nested 30,000 deep": (
            f"{_WIRE}/test_nested_json.py::test_json_nested_30000_deep_is_refused_in_words",
            "tests/unit/privacy/test_events.py::"
            "test_deep_nesting_is_refused_before_it_exhausts_the_stack",
        ),
        "conflicting answers to one task": (
            f"{_SERVER}/test_protocol.py::test_other_bytes_for_a_task_are_charged_once_each",
            "tests/integration/test_server_app.py::"
            "test_other_bytes_that_arrive_are_charged_once_and_end_the_session",
        ),
        # Who calls.
        "a wrong authority": (
            "tests/integration/test_server_identity.py::"
            "test_what_tls_refuses_gets_nowhere_and_the_server_goes_on",
            f"{_WIRE}/test_identity.py::"
            "test_a_client_hangs_up_on_a_server_of_another_authority_name_or_role",
        ),
        "a wrong certificate": (
            "tests/integration/test_server_identity.py::"
            "test_a_certificate_that_is_on_no_roster_is_refused",
            "tests/integration/test_server_identity.py::"
            "test_a_revoked_client_is_out_at_its_next_call_and_no_other_is",
        ),
        "a wrong name": (
            "tests/integration/test_server_identity.py::"
            "test_a_client_cannot_pass_for_another_in_any_call",
            "tests/integration/test_server_identity.py::"
            "test_a_client_cannot_pass_for_another_in_streams",
        ),
        "a wrong digest": (
            f"{_SERVER}/test_protocol.py::test_hello_compares_the_study",
            f"{_SERVER}/test_protocol.py::test_a_changed_byte_of_a_payload_is_noticed",
            "tests/integration/test_server_app.py::"
            "test_what_was_damaged_on_the_way_is_refused_and_forgotten",
        ),
        "a wrong version": (
            f"{_WIRE}/test_grpc.py::test_a_server_that_speaks_something_else_is_told_apart",
            f"{_WIRE}/test_parcels.py::test_a_file_of_another_version_says_what_to_install",
        ),
        "a wrong session": (
            f"{_WIRE}/test_grpc.py::"
            "test_an_older_session_is_refused_before_a_byte_of_its_answer_leaves",
            f"{_SERVER}/test_protocol.py::"
            "test_whoever_greeted_last_supersedes_whoever_greeted_before",
        ),
        "a wrong attempt": (
            f"{_SERVER}/test_protocol.py::"
            "test_attempts_that_the_server_did_not_hear_of_are_priced_together",
            f"{_SERVER}/test_turns.py::test_further_attempts_are_charged_or_refused",
        ),
        # A hostile server.
        "a 13th round, and 13 times the same task; a q of 1e200": (
            "tests/unit/client/test_hostile_tasks.py::"
            "test_whatever_a_server_asks_it_gets_noise_and_no_more_of_it_than_was_planned",
        ),
        "a singular J": (
            "tests/unit/client/test_hostile_tasks.py::"
            "test_a_task_about_an_improper_q_is_refused_before_anything_is_charged",
        ),
        "sets of sites that a server names to open their sum twice": (
            "tests/unit/client/test_malicious_server.py::"
            "test_a_server_that_plays_at_random_opens_one_set_a_round",
        ),
        # Crashes and the disk.
        "kill -9 in a masked run": (
            "tests/integration/test_secure_kills.py::"
            "test_a_site_killed_at_each_step_of_a_round_signs_and_opens_once",
        ),
        "kill -9 of a client, and of a server": (
            "tests/integration/test_client_crashes.py::"
            "test_a_client_killed_anywhere_draws_no_noise_again_and_pays_once",
            "tests/integration/test_killed_server.py::"
            "test_a_server_killed_at_every_step_of_a_run_changes_no_bit",
        ),
        "a full disk": (
            f"{_SERVER}/test_durable.py::"
            "test_a_full_disk_leaves_the_state_before_and_the_store_goes_on",
            "tests/unit/store/test_sqlite.py::test_a_full_disk_leaves_nothing_half_written",
            "tests/integration/test_full_disk_and_clock.py::"
            "test_a_server_whose_disk_is_full_loses_nothing_and_goes_on",
        ),
        "two servers on one state, and two clients": (
            f"{_SERVER}/test_durable.py::"
            "test_a_second_server_is_refused_until_the_first_has_closed",
            "tests/unit/store/test_sqlite.py::"
            "test_a_second_opener_is_refused_until_the_first_has_closed",
        ),
        "another account of the machine that reads states, keys or the local socket": (
            f"{_SERVER}/test_durable.py::test_only_the_owner_may_read_whatever_the_mask_says",
            "tests/unit/store/test_sqlite.py::test_only_the_owner_may_read_whatever_the_mask_says",
            f"{_WIRE}/test_authority.py::test_keys_can_be_read_by_their_owner_alone",
            "tests/integration/test_server_app.py::test_the_socket_is_for_its_owner_alone",
        ),
        "a power cut after a commit: WAL with synchronous=FULL": (
            f"{_SERVER}/test_durable.py::test_commits_reach_the_disk",
            "tests/unit/store/test_sqlite.py::test_commits_reach_the_disk_and_deletions_overwrite",
        ),
        # The last of the cap, and keys.
        "two processes that spend the last of the cap for life": (
            "tests/unit/store/test_life.py::"
            "test_two_that_hold_the_ledger_never_both_get_the_last_of_it",
            "tests/unit/store/test_life.py::"
            "test_processes_at_once_spend_what_one_would_and_no_more",
        ),
        "a key or a state that others can read": (
            "tests/unit/test_permissions.py::test_no_key_is_used_that_others_can_read",
            "tests/unit/test_permissions.py::"
            "test_no_store_is_opened_in_a_folder_that_others_can_reach",
            "tests/integration/test_site_door.py::"
            "test_a_key_or_a_state_that_others_can_read_is_refused",
        ),
        "an authority whose fingerprint nobody compared": (
            "tests/integration/test_identity_cli.py::"
            "test_an_authority_is_not_trusted_before_its_fingerprint_was_compared",
        ),
        "a server that has no ledger of a site that has paid": (
            "tests/integration/test_doctor.py::test_the_ledger_is_compared_with_the_servers",
        ),
        # The supply chain.
        "another base image, or another wheel, under the same name": (
            "tests/unit/test_supply_chain.py::test_every_image_is_built_on_a_digest",
            "tests/unit/test_supply_chain.py::test_each_entry_of_a_lock_has_one_version_and_hashes",
            "tests/unit/test_supply_chain.py::"
            "test_the_images_install_nothing_without_a_hash_but_the_project",
        ),
        "a server's image with more in it than a server needs, or than it lists": (
            "tests/integration/test_containers.py::"
            "test_the_server_s_image_has_only_what_a_server_imports_and_says_so",
            "tests/integration/test_containers.py::"
            "test_an_image_lists_exactly_what_is_installed_in_it",
        ),
        "metrics that the whole cluster can read": (
            "tests/unit/test_supply_chain.py::test_metrics_in_kubernetes_are_for_the_pod_alone",
        ),
        # What people read.
        "a server's words in the place of the client's own": (
            "tests/integration/test_hostile_words.py::test_a_refusal_a_wait_and_an_end_are_quoted",
            "tests/integration/test_hostile_words.py::test_every_refusal_is_quoted",
            "tests/integration/test_hostile_words.py::"
            "test_every_text_of_every_reply_is_quoted_or_not_shown",
        ),
        "a formula in a cell of a CSV": (
            "tests/unit/report/test_spreadsheets.py::test_a_formula_is_written_as_a_text",
            "tests/integration/test_hostile_cells.py::test_no_command_writes_a_formula_into_a_csv",
        ),
        "cross-site scripting in the report": (
            "tests/unit/report/test_page.py::test_no_text_of_a_study_becomes_an_element",
        ),
        "cross-site scripting in the page of a run": (
            f"{_SERVER}/test_page_html.py::test_what_came_from_outside_stays_text",
            f"{_SERVER}/test_page.py::"
            "test_every_answer_forbids_the_browser_all_that_the_page_does_not_need",
            "tests/integration/test_live_page.py::test_hostile_names_and_errors_are_text",
        ),
        "a way out of a container": (
            "tests/integration/test_containers.py::"
            "test_the_whole_federation_comes_up_survives_a_killed_server_and_ends",
            "tests/unit/test_attacks.py::test_containers_run_as_a_user_without_rights",
        ),
    }
)
"""Attack → FILE::FUNCTION of each test that fails if it works."""
