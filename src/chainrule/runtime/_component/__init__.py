"""Components: from a file, a function or an executable to validated endpoints.

    load_component, component, from_command      three ways to make one
        → Definition                             what the author gave
        → LocalComponent                         endpoints, capabilities, OpenAPI document

In reading order:

    _definition     what an author gives; where an endpoint comes from; the content hash
    _loading        files, folders, modules → Definition
    _isolation      run a file without an effect on the rest of the process
    _jax_modules    what JAX can do with a file, read from its syntax
    _functions      annotated functions → Definition
    _commands       executables and `component.yaml` → Definition
    _decks          text files of executables: templates, and patterns of results
    _devices        functions that compute on a GPU
    _schemas        the models that validate; abstract evaluation from schemas alone
    _local          `LocalComponent`, and 64 bits for components that declare them
    _handlers       the endpoints: validate, run, validate
    _prepared       calls on a GPU that were validated before
    _derivation     endpoints that the author left out
    _failures       whose mistake an error is, and how it is said
    _observation    profiles, traces, kept output
    _plots          the author's own plots of a result
    _openapi        the OpenAPI document of a component
    _document       what a document says, for programs and people

The endpoints are described in `chainrule._endpoints`.
"""
