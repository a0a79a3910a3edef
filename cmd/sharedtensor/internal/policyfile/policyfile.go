// Package policyfile reads the access policy of an owner from a YAML file.
//
//	# Rules add up. A process without a rule cannot connect.
//	rules:
//	  - users: [trainer]          # names or numbers
//	    list: ["*"]               # * stands for any characters
//	    publish: ["llm-*"]
//	    withdraw: ["llm-*"]
//	  - groups: [inference, 2000]
//	    list: ["*"]
//	    acquire: ["*"]
//	    call: ["embed"]
//
// The other keys of a rule are everyone, info and offer. The file may also contain restrict-owner. Package access
// describes all of them.
package policyfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/user"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/internal/trusted"
)

// MaxBytes limits the size of a policy file.
const MaxBytes = 1 << 20

// file is the content of a policy file.
type file struct {
	RestrictOwner bool   `yaml:"restrict-owner"`
	Rules         []rule `yaml:"rules"`
}

type rule struct {
	Users    []id     `yaml:"users"`
	Groups   []id     `yaml:"groups"`
	Everyone bool     `yaml:"everyone"`
	Info     bool     `yaml:"info"`
	List     []string `yaml:"list"`
	Acquire  []string `yaml:"acquire"`
	Publish  []string `yaml:"publish"`
	Withdraw []string `yaml:"withdraw"`
	Call     []string `yaml:"call"`
	Offer    []string `yaml:"offer"`
}

// id is the name or the number of a user or a group, and its line in the file.
type id struct {
	text string
	line int
}

// UnmarshalYAML implements [yaml.Unmarshaler].
func (i *id) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind != yaml.ScalarNode || node.Tag == "!!null" || node.Value == "" {
		return fmt.Errorf("line %d: use the name or the number of a user or a group", node.Line)
	}
	i.text, i.line = node.Value, node.Line
	return nil
}

// Load reads and checks a policy file. It resolves names of users and groups once, with the databases of this host. It
// refuses a file that other users can write, because they could give themselves rights.
func Load(path string) (*access.Policy, error) {
	data, err := trusted.ReadFile(path, MaxBytes)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	policy, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", path, err)
	}
	return policy, nil
}

// Parse returns the policy in the text of a file. Unknown keys are errors.
func Parse(data []byte) (*access.Policy, error) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	var in file
	switch err := d.Decode(&in); {
	case errors.Is(err, io.EOF):
		return nil, errors.New("the file is empty; a policy without rules is rules: []")
	case err != nil:
		return nil, err
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("the file has more than one document")
	}
	policy := &access.Policy{RestrictOwner: in.RestrictOwner}
	for i := range in.Rules {
		r, err := in.Rules[i].resolve()
		if err != nil {
			return nil, fmt.Errorf("rule %d: %w", i+1, err)
		}
		policy.Rules = append(policy.Rules, r)
	}
	return policy, policy.Check()
}

// resolve returns the rule with numbers of users and groups.
func (r *rule) resolve() (out access.Rule, err error) {
	out = access.Rule{
		Everyone: r.Everyone, Info: r.Info, List: r.List, Acquire: r.Acquire, Publish: r.Publish, Withdraw: r.Withdraw, Call: r.Call, Offer: r.Offer,
	}
	if out.UIDs, err = numbers(r.Users, "user", LookupUser); err != nil {
		return out, err
	}
	out.GIDs, err = numbers(r.Groups, "group", LookupGroup)
	return out, err
}

func numbers(ids []id, what string, lookup func(string) (uint32, error)) ([]uint32, error) {
	var list []uint32
	for _, i := range ids {
		n, err := lookup(i.text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %s %q: %w", i.line, what, i.text, err)
		}
		list = append(list, n)
	}
	return list, nil
}

// LookupUser returns the id of a user, by name or number.
func LookupUser(name string) (uint32, error) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		return uint32(n), nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return 0, errors.New("this host has no such user; use its number")
	}
	return parse(u.Uid)
}

// LookupGroup returns the id of a group, by name or number.
func LookupGroup(name string) (uint32, error) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		return uint32(n), nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, errors.New("this host has no such group; use its number")
	}
	return parse(g.Gid)
}

func parse(number string) (uint32, error) {
	n, err := strconv.ParseUint(number, 10, 32)
	return uint32(n), err
}
