"""Tables and figures of the papers behind our methods: experiments and claims as values, run by one command."""
