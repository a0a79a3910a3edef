package inference

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// versionField is the input that passes the version of the model to the function.
const versionField = "version"

// versionsFor is how long the versions of a model are cached.
const versionsFor = time.Second

// versions are the versions of a model, which are published under the endpoint's name. If there are none, the endpoint
// has version 1.
type versions struct {
	mu      sync.Mutex
	at      time.Time
	list    []uint64 // oldest first; empty if nothing is published under the name
	current uint64
}

// single is the version of an endpoint without published models.
const single = "1"

// versionsOf returns the versions that a request can specify, and the current one.
func (c *catalog) versionsOf(ctx context.Context, m *model, fresh bool) (list []string, current string, err error) {
	if !m.owned {
		return []string{single}, single, nil
	}
	v := &m.versions
	v.mu.Lock()
	defer v.mu.Unlock()
	if fresh || time.Since(v.at) > versionsFor {
		if err := c.askVersions(ctx, m.name, v); err != nil {
			return nil, "", err
		}
	}
	if v.current == 0 {
		return []string{single}, single, nil
	}
	current = strconv.FormatUint(v.current, 10)
	if _, ok := m.input(versionField); !ok {
		return []string{current}, current, nil
	}
	for _, n := range v.list {
		list = append(list, strconv.FormatUint(n, 10))
	}
	return list, current, nil
}

// askVersions requests the versions from the owner. The caller holds v.mu.
func (c *catalog) askVersions(ctx context.Context, name string, v *versions) error {
	client, err := c.owner.Client()
	if err != nil {
		return err
	}
	bound, unbind := c.owner.Bind(ctx)
	defer unbind()
	info, err := client.Info(bound, name)
	if err != nil && !errors.Is(err, endpoint.ErrNotFound) {
		return err
	}
	v.at, v.list, v.current = time.Now(), nil, 0
	if err != nil || info.Current == 0 {
		return nil
	}
	v.current = info.Current
	for _, one := range info.Versions {
		if !one.Withdrawn {
			v.list = append(v.list, one.Version)
		}
	}
	slices.Sort(v.list)
	return nil
}

// choose returns the version for a request: asked itself, or the current version if it is empty.
func (c *catalog) choose(ctx context.Context, m *model, asked string) (string, error) {
	list, current, err := c.versionsOf(ctx, m, false)
	if err != nil || asked == "" {
		return current, err
	}
	if !slices.Contains(list, asked) {
		if list, _, err = c.versionsOf(ctx, m, true); err != nil {
			return "", err
		}
	}
	if !slices.Contains(list, asked) {
		return "", &unknownModel{fmt.Sprintf("Request for unknown model: '%s' version %s is not found; there is %v", m.name, clip(asked), list)}
	}
	return asked, nil
}
