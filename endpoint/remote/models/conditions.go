package models

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

// errCondition reports that the current version of a model does not satisfy the conditions of a change.
var errCondition = admission.NewError(admission.Precondition, "the model has changed")

// maxReconsidered limits how often a change is attempted while other changes of the name satisfy its conditions.
const maxReconsidered = 8

// conditions are the fields If-Match and If-None-Match of a request to change a model (RFC 9110, section 13). Their tags
// are the ETags of model.safetensors. Models have no modification dates, so the fields with dates are ignored.
type conditions struct {
	match, noneMatch tags
}

// tags is the value of one of the fields.
type tags struct {
	present bool
	any     bool // *
	strong  []string
	weak    []string // without W/
}

// conditionsOf parses the conditions of a request.
func conditionsOf(h http.Header) (c conditions, err error) {
	if c.match, err = tagsOf(h, "If-Match"); err == nil {
		c.noneMatch, err = tagsOf(h, "If-None-Match")
	}
	return c, err
}

// tagsOf parses * or a list of entity tags. The lines of a field are one list.
func tagsOf(h http.Header, field string) (t tags, err error) {
	lines := h.Values(field)
	if len(lines) == 0 {
		return t, nil
	}
	t.present = true
	text := strings.Join(lines, ",")
	if strings.Trim(text, " \t") == "*" {
		t.any = true
		return t, nil
	}
	for {
		text = strings.TrimLeft(text, " \t,")
		if text == "" {
			break
		}
		tag, isWeak := strings.CutPrefix(text, "W/")
		end := -1
		if strings.HasPrefix(tag, `"`) {
			end = strings.IndexByte(tag[1:], '"')
		}
		if end < 0 || strings.ContainsFunc(tag[1:end+1], func(c rune) bool { return c <= ' ' || c == 0x7f }) {
			return t, fmt.Errorf("%w: %s is neither * nor a list of entity tags", ErrParams, field)
		}
		text = strings.TrimLeft(tag[end+2:], " \t")
		if text != "" && text[0] != ',' {
			return t, fmt.Errorf("%w: %s has text behind an entity tag", ErrParams, field)
		}
		if tag = tag[:end+2]; isWeak {
			t.weak = append(t.weak, tag)
		} else {
			t.strong = append(t.strong, tag)
		}
	}
	if len(t.strong)+len(t.weak) == 0 {
		return t, fmt.Errorf("%w: %s is empty", ErrParams, field)
	}
	return t, nil
}

// has reports whether the list contains a tag.
func has(list []string, tag string) bool {
	for _, one := range list {
		if one == tag {
			return true
		}
	}
	return false
}

// needed reports whether there are conditions, and whether they compare tags.
func (c *conditions) needed() bool { return c.match.present || c.noneMatch.present }

func (c *conditions) needTag() bool {
	return c.match.present && !c.match.any || c.noneMatch.present && !c.noneMatch.any
}

// hold returns an error unless the conditions are satisfied by the ETag of the current version, empty if there is none.
// If-Match is evaluated first and compares strongly, If-None-Match weakly. ETags of models are strong.
func (c *conditions) hold(etag string, exists bool) error {
	if m := c.match; m.present && !(exists && (m.any || has(m.strong, etag))) {
		return fmt.Errorf("%w: If-Match does not hold", errCondition)
	}
	if n := c.noneMatch; n.present && exists && (n.any || has(n.strong, etag) || has(n.weak, etag)) {
		return fmt.Errorf("%w: If-None-Match does not hold", errCondition)
	}
	return nil
}

// check evaluates the conditions. It returns the number of the current version, 0 for a name that is not published.
func (c *Component) check(ctx context.Context, client *endpoint.Client, name string, wanted conditions) (version uint64, err error) {
	if !wanted.needTag() {
		info, err := client.Info(ctx, name)
		if err != nil && !errors.Is(err, endpoint.ErrNotFound) {
			return 0, err
		}
		return info.Current, wanted.hold("", info.Current != 0)
	}
	h, err := client.Acquire(ctx, name, endpoint.AcquireOptions{})
	if errors.Is(err, endpoint.ErrNotFound) {
		return 0, wanted.hold("", false)
	} else if err != nil {
		return 0, err
	}
	defer h.Close() // best effort: it was only read
	source, err := modelwire.FileContent(h.StateDict())
	if err != nil {
		return 0, err
	}
	digest, err := c.env.Digests.File(ctx, versionOf(h), source)
	if err != nil {
		return 0, err
	}
	return h.Version(), wanted.hold(digest.ETag(), true)
}

// changeIf makes a change whose conditions hold. The owner compares the version that was checked when it makes the
// change. If another version was published meanwhile, the conditions are checked again. Without conditions, change
// receives nil.
func (c *Component) changeIf(ctx context.Context, client *endpoint.Client, name string, wanted conditions, change func(current *uint64) error) error {
	if !wanted.needed() {
		return change(nil)
	}
	for range maxReconsidered {
		version, err := c.check(ctx, client, name, wanted)
		if err != nil {
			return err
		}
		if err = change(&version); !errors.Is(err, endpoint.ErrChanged) {
			return err
		}
	}
	return fmt.Errorf("%w: other changes of %s do not end", errCondition, name)
}
