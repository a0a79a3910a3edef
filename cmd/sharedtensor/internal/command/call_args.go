package command

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/endpoint/jsonvalue"
)

// argsHelp documents the arguments of an endpoint.
const argsHelp = `Each key=value is a field of the endpoint's argument. A value that is valid JSON is parsed as JSON: 3, 2.5, true, null,
[1, 2], {"a": 1}, "3". Any other value is a string. A value that begins with @ refers to tensors, which the owner reads in place:
  key=@model.safetensors:NAME  a tensor of a file, read into shared memory
  key=@llm:NAME                a tensor of a published model, in place
  key=@llm                     all tensors of a file or a model
Use --in for an argument without fields.`

// callArgs holds the arguments of an endpoint from the command line.
type callArgs struct {
	whole  string // JSON of the whole argument, replaces fields and refs
	fields map[string]any
	refs   map[string]string // references (the text after @) by field
}

// argsFlag adds --in to a command.
func argsFlag(c *cobra.Command, args *callArgs) {
	c.Flags().StringVar(&args.whole, "in", "", "the whole argument as JSON, instead of key=value")
}

// parse parses the words after the endpoint.
func (a *callArgs) parse(c *cobra.Command, words []string) error {
	a.fields, a.refs = map[string]any{}, map[string]string{}
	if a.whole != "" && len(words) > 0 {
		return cli.Usagef(c, "--in is the whole argument: remove %q", words[0])
	}
	for _, word := range words {
		key, text, found := strings.Cut(word, "=")
		if !found || key == "" {
			return cli.Usagef(c, "%q is not key=value; give an argument without fields with --in", word)
		}
		_, twice := a.fields[key]
		if _, tensor := a.refs[key]; twice || tensor {
			return cli.Usagef(c, "%q is given twice", key)
		}
		if ref, isRef := strings.CutPrefix(text, "@"); isRef {
			if ref == "" {
				return cli.Usagef(c, "%q has no file or model after the @", word)
			}
			a.refs[key] = ref
			continue
		}
		value, err := parseJSON(text)
		if errors.Is(err, errNotJSON) {
			value = text
		} else if err != nil {
			return cli.Usagef(c, "%s: %w", key, err)
		}
		a.fields[key] = value
	}
	if a.whole != "" {
		if _, err := parseJSON(a.whole); err != nil {
			return cli.Usagef(c, "--in: %w", err)
		}
	}
	return nil
}

// empty reports whether no argument was given.
func (a *callArgs) empty() bool { return a.whole == "" && len(a.fields)+len(a.refs) == 0 }

var errNotJSON = errors.New("not valid JSON")

// parseJSON parses one JSON value.
func parseJSON(text string) (any, error) {
	if !json.Valid([]byte(text)) {
		return nil, errNotJSON
	}
	return jsonvalue.Parse([]byte(text))
}
