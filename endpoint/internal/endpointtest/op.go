//go:build unix

package endpointtest

import (
	"encoding/json"

	"github.com/stretchr/testify/require"
)

// Op is a command of a role: a function that a child runs, with an argument and a result that JSON can carry.
type Op[S, In, Out any] struct {
	role *Role[S]
	name string
}

// NewOp adds a command to a role. Commands of a child run one after the other.
func NewOp[S, In, Out any](role *Role[S], name string, do func(s *S, in In) (Out, error)) Op[S, In, Out] {
	if _, ok := role.ops[name]; ok {
		panic("endpointtest: role " + role.name + " has two commands " + name)
	}
	role.ops[name] = func(s *S, raw json.RawMessage) (any, error) {
		var in In
		if err := json.Unmarshal(raw, &in); err != nil {
			return nil, err
		}
		return do(s, in)
	}
	return Op[S, In, Out]{role, name}
}

// Ask has the child run the command and returns what the function returned; an error is an [*Error]. The test fails if
// the process ends instead. Out is what came with an error, too.
func (o Op[S, In, Out]) Ask(p *Process[S], in In) (out Out, err error) {
	p.t.Helper()
	o.Send(p, in)
	a := p.receive(o.name)
	if len(a.Out) > 0 {
		require.NoError(p.t, json.Unmarshal(a.Out, &out), o.name)
	}
	if a.Error != nil {
		a.Error.sentinels = o.role.sentinels
		return out, a.Error
	}
	return out, nil
}

// Send has the child run the command and does not wait for the answer: the process is not meant to live that long, and
// has to be asked nothing else.
func (o Op[S, In, Out]) Send(p *Process[S], in In) {
	p.t.Helper()
	raw, err := json.Marshal(in)
	require.NoError(p.t, err)
	p.send(command{Op: o.name, In: raw})
}

// Must is Ask of a command that has to succeed.
func (o Op[S, In, Out]) Must(p *Process[S], in In) Out {
	p.t.Helper()
	out, err := o.Ask(p, in)
	require.NoError(p.t, err, o.name)
	return out
}
