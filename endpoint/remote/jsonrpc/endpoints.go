package jsonrpc

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// endpointCache caches the descriptions of an owner's endpoints, so that calls need no extra request. It is refreshed
// when a name is missing, when the owner changes, and when it is older than listTime: workers withdraw functions and offer
// others under their names.
type endpointCache struct {
	mu     sync.Mutex
	server string
	at     time.Time // of the last list, or of the last attempt
	byName map[string]endpoint.EndpointInfo
}

// listTime is the maximum age of the descriptions.
const listTime = time.Second

// find returns the description of an endpoint and the caller to use for it.
func (e *endpointCache) find(ctx context.Context, owner gateway.Owner, name string) (endpoint.Caller, endpoint.EndpointInfo, error) {
	caller, err := owner.Caller(name)
	if err != nil {
		return nil, endpoint.EndpointInfo{}, err
	}
	server := owner.ServerID()
	e.mu.Lock()
	info, known := e.byName[name]
	current := e.server == server && server != ""
	old := time.Since(e.at) > listTime
	if old {
		e.at = time.Now() // only one request lists the endpoints
	}
	e.mu.Unlock()
	if known && current && !old {
		return caller, info, nil
	}
	byName, err := e.refresh(ctx, owner)
	if err != nil && known && current {
		return caller, info, nil // the call reports whether there is an owner
	}
	if err != nil {
		return nil, endpoint.EndpointInfo{}, err
	}
	if info, known = byName[name]; !known {
		return nil, info, unknownFunction(ctx, name, byName)
	}
	return caller, info, nil
}

// changed lists the endpoints and returns the description of one if it differs from known.
func (e *endpointCache) changed(ctx context.Context, owner gateway.Owner, known endpoint.EndpointInfo) (endpoint.EndpointInfo, bool) {
	byName, err := e.refresh(ctx, owner)
	info, found := byName[known.Name]
	return info, err == nil && found && !reflect.DeepEqual(info, known)
}

// refresh lists the endpoints.
func (e *endpointCache) refresh(ctx context.Context, owner gateway.Owner) (map[string]endpoint.EndpointInfo, error) {
	server := owner.ServerID()
	list, err := listEndpoints(ctx, owner)
	if err != nil {
		return nil, err
	}
	byName := make(map[string]endpoint.EndpointInfo, len(list))
	for _, one := range list {
		if _, taken := byName[one.Name]; !taken { // endpoints of the embedding program have priority
			byName[one.Name] = one
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.server, e.byName, e.at = server, byName, time.Now()
	return byName, nil
}

// listEndpoints returns all callable endpoints. Endpoints of the embedding program are first.
func listEndpoints(ctx context.Context, owner gateway.Owner) ([]endpoint.EndpointInfo, error) {
	callers := owner.Callers()
	if len(callers) == 0 {
		_, err := owner.Client()
		return nil, err
	}
	var all []endpoint.EndpointInfo
	for _, c := range callers {
		bound, unbind := owner.Bind(ctx)
		list, err := c.Endpoints(bound)
		unbind()
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

// unknownFunction returns an error that lists the available functions. Import paths, which shared-tensor 0.1 accepted,
// get a specific error.
func unknownFunction(ctx context.Context, name string, there map[string]endpoint.EndpointInfo) error {
	if strings.ContainsAny(name, ":/") {
		return &callError{fmt.Errorf("%q: %w: use names of functions, import paths are not supported", name, endpoint.ErrNoEndpoint), notRun}
	}
	names := make([]string, 0, len(there))
	for n := range there {
		if rights.Sender(ctx).May(access.Call, n) {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	const shown = 20
	list := strings.Join(names[:min(len(names), shown)], ", ")
	if len(names) > shown {
		list += fmt.Sprintf(" and %d more: see list_functions", len(names)-shown)
	}
	if list == "" {
		list = "none"
	}
	return &callError{fmt.Errorf("%q: %w; there is %s", name, endpoint.ErrNoEndpoint, list), notRun}
}
