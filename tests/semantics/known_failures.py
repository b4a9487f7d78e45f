"""Cases that are wrong today, by cause. It is to be empty."""

_CAUSES: dict[str, str] = {
    "warnings and errors of floating-point operations are not those of NumPy": """
        floating_point.a_warning_by_a_number floating_point.a_warning_for_a_cast
        floating_point.a_warning_for_a_division floating_point.a_warning_for_a_logarithm
        floating_point.a_warning_sometimes floating_point.errstate_around_the_call
        floating_point.errstate_calls floating_point.errstate_raises
        floating_point.errstate_raises_and_is_caught floating_point.errstate_raises_sometimes
        floating_point.mean_of_nothing floating_point.variance_with_a_warning state.a_warning_of_the_users
    """,
    "while it is recorded an argument does not look like what it stands for": """
        asking.abstract_containers asking.attribute_error_of_an_array asking.class_attribute
        asking.hasattr_of_a_scalar_result asking.hasattr_of_an_array asking.hasattr_of_what_only_we_have
        asking.id_and_hash asking.identity_of_two_arguments asking.isinstance_ndarray
        asking.isinstance_of_a_scalar_result asking.isinstance_of_an_element asking.isinstance_of_numbers
        asking.isscalar asking.isscalar_of_an_argument asking.issubclass_of_the_type
        asking.methods_of_a_numpy_scalar asking.name_of_the_type asking.type_is_ndarray asking.type_of_numbers
        asking.vars_and_dir
    """,
    "the result is in another order in memory, or no view where NumPy gives one": """
        arguments.fortran_order_is_kept arguments.many_axes indexing.lists_as_indices indexing.slices_as_views
        indexing.two_arrays_as_indices numpy_functions.einsums numpy_functions.flipping numpy_functions.fourier
        numpy_functions.shapes operators.complex_arithmetic results.a_broadcast_temporary
        results.a_reversed_temporary results.a_slice_of_a_temporary results.a_transposed_temporary
        results.more_views_of_the_argument results.order_of_copies results.order_of_joining
        results.order_of_reductions results.order_of_selection results.transposed_arithmetic
        results.views_of_each_other results.views_of_the_argument
    """,
    "another error than NumPy's": """
        errors.a_singular_matrix errors.a_singular_matrix_sometimes errors.add_at_out_of_bounds_by_its_value
        errors.an_error_and_what_was_done_before errors.an_error_with_a_cause
        errors.an_index_out_of_bounds_by_its_value errors.assignment_out_of_bounds_by_its_value
        errors.cholesky_of_a_negative_matrix errors.integers_to_negative_powers
        errors.take_out_of_bounds_by_its_value errors.two_indices_out_of_bounds_by_their_values
    """,
    "it could be recorded, and is not": """
        arguments.arrays_or_lists asking.array_of_an_array asking.array_with_options
        asking.asanyarray_and_atleast asking.asarray_of_an_array asking.asarray_with_a_type asking.contiguous
        asking.flags asking.not_isinstance_so_convert asking.require asking.strides
        classes.operators_of_an_argument classes.slots indexing.a_transposed_view_is_written_through
        indexing.assign_in_a_loop indexing.assign_with_another_type indexing.augmented_assignment_by_a_mask
        numpy_functions.columns numpy_functions.counting_bytes numpy_functions.deleting_and_inserting
        numpy_functions.joining numpy_functions.outputs numpy_functions.outputs_of_reductions
        numpy_functions.special_functions numpy_functions.sums_of_groups programs.box_blur programs.equalise
        programs.mandelbrot
    """,
    "what it prints is printed while it is recorded, and not afterwards": """
        functions.printed_constant functions.printed_values
    """,
    "state, or an effect, that recording does not see": """
        arguments.without_axes_in_place classes.an_argument_gets_an_array
        classes.an_attribute_hides_a_class_attribute classes.attributes_that_raise
        classes.the_class_of_an_object_changes control_flow.match_a_class control_flow.try_truth_of_an_array
        errors.an_error_after_a_change_of_an_argument errors.an_own_error_with_an_array
        functions.attribute_of_a_function functions.attribute_of_a_function_read
        functions.default_changed_by_others functions.lru_cache_of_a_table indexing.swap_by_slices
        numpy_functions.products programs.black_scholes results.a_scalar_in_place results.a_scalar_that_is_used
        results.an_array_without_axes results.an_element_in_place state.a_dict_argument_is_written state.a_file
        state.a_generator_is_consumed state.a_generator_of_arrays_as_argument
        state.a_list_argument_is_appended_to state.a_list_argument_is_sorted state.a_weak_dictionary
        state.a_weak_reference state.an_array_becomes_read_only state.an_array_is_resized
        state.an_endless_cycle state.an_iterator_is_consumed state.an_open_file_that_is_written
        state.argparse_namespace state.array_array state.byte_array state.chain_map state.context_variable
        state.deque_of_numbers state.dict_that_is_iterated state.environment state.environment_by_getenv
        state.eval_of_a_global state.from_import_inside state.globals_by_name state.masked_array
        state.memory_view state.module_attribute state.object_array state.ordered_dict state.print_options
        state.random_of_numpy_seeded_inside state.record_array state.recursion_limit_and_argv
        state.simple_namespace state.string_array state.the_state_of_floating_point_errors state.the_time
        state.thread_local
    """,
    "what is returned is a copy, where NumPy returns the argument or a view": """
        errors.an_error_with_an_array_as_argument functions.itertools_functions functions.reduce_and_accumulate
        indexing.a_view_is_written_through indexing.an_integer_argument_as_index numpy_functions.methods
        operators.a_python_integer_counts results.nested_named_views results.the_argument_among_others
        results.the_argument_itself results.the_argument_sometimes results.tuples_in_tuples
        state.an_outside_array_is_returned state.set_of_names
    """,
}

KNOWN_FAILURES: dict[str, str] = {name: cause for cause, names in _CAUSES.items() for name in names.split()}
