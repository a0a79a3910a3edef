package rights

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Scopes are the bins, queues and training runs that a client of an embedded server may use. A scope is
//
//	bin.NAMESPACE            all bins of a namespace
//	bin.NAMESPACE.PATTERN    the bins whose names match; * stands for one part of a name, a final > for one or more
//	queue.NAMESPACE          a queue
//	rl.RUN                   a training run (package rl): its parameters, members and data
//	rl.RUN.worker            the part of a worker: it receives parameters, joins the run and adds data
//	>                        everything, also streams and buckets of other programs
//
// To read a run is to receive its parameters and to list its members. Large bodies of items belong to the whole
// namespace: a client with a scope of some bins does not receive them. Names are escaped as in subjects: every byte other
// than a letter, digit, dot, hyphen or underscore is %XX.
type Scopes struct {
	// Read contains the scopes that the client may read.
	Read []string
	// Write contains the scopes that the client may read and change.
	Write []string
}

// Everything is the scope of all subjects.
const Everything = ">"

// Kind is the kind of content of a scope's stream.
type Kind string

// Kinds of content.
const (
	BinItems   Kind = "bin"
	QueueItems Kind = "queue"
	Objects    Kind = "objects" // an object store
	Values     Kind = "values"  // a key-value bucket
)

// Scope is the part of one stream that a client may use.
type Scope struct {
	Kind Kind
	// Namespace is that of bins or a queue, or the name of the bucket.
	Namespace string
	// Rest is the pattern of names: [Everything] for all.
	Rest string
	// Write allows changes. AddOnly limits them in a queue to adding items.
	Write, AddOnly bool
}

// CheckScope returns an error that describes why text is not a scope.
func CheckScope(text string) error {
	if text == Everything {
		return nil
	}
	_, err := parseScope(text, false)
	return err
}

func parseScope(text string, write bool) ([]Scope, error) {
	parts := strings.SplitN(text, ".", 3)
	bad := fmt.Errorf("%q is not a scope of NATS: use bin.NAMESPACE, bin.NAMESPACE.PATTERN, queue.NAMESPACE, rl.RUN, rl.RUN.worker or >", text)
	if len(parts) < 2 || parts[1] == "" || strings.ContainsAny(parts[1], "*>. \t") {
		return nil, bad
	}
	s := Scope{Namespace: parts[1], Rest: Everything, Write: write}
	if len(parts) == 3 {
		s.Rest = parts[2]
	}
	switch parts[0] {
	case "bin":
		s.Kind = BinItems
	case "queue":
		s.Kind = QueueItems
		if s.Rest != Everything {
			return nil, errors.New("a scope of a queue has no topic: its pullers receive all topics")
		}
	case "rl":
		if len(parts) == 3 && s.Rest != "worker" {
			return nil, bad
		}
		return runScopes(s.Namespace, len(parts) == 3, write), nil
	default:
		return nil, bad
	}
	words := strings.Split(s.Rest, ".")
	for i, word := range words {
		if word == "" || word == Everything && i < len(words)-1 || word != "*" && word != Everything && strings.ContainsAny(word, "*> \t") {
			return nil, bad
		}
	}
	return []Scope{s}, nil
}

// runScopes returns the streams of a training run, whose names package rl defines.
func runScopes(run string, worker, write bool) []Scope {
	list := []Scope{
		{Kind: BinItems, Namespace: "rl", Rest: run + ".parameters", Write: write && !worker},
		{Kind: Objects, Namespace: "RL_" + run + "_parameters", Rest: Everything, Write: write && !worker},
		{Kind: Values, Namespace: "RL_" + run, Rest: Everything, Write: write},
	}
	if write {
		list = append(list, Scope{Kind: QueueItems, Namespace: "rl_" + run, Rest: Everything, Write: true, AddOnly: worker})
	}
	return list
}

// All reports whether the scopes contain everything, with the right to change it.
func (s Scopes) All() bool { return slices.Contains(s.Write, Everything) }

// Parse returns the valid scopes, except for [Everything].
func (s Scopes) Parse() (list []Scope) {
	for _, text := range s.Read {
		if some, err := parseScope(text, false); err == nil {
			list = append(list, some...)
		}
	}
	for _, text := range s.Write {
		if some, err := parseScope(text, true); err == nil {
			list = append(list, some...)
		}
	}
	return list
}
