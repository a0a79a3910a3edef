package gateway

import (
	"context"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/contain"
)

const (
	// functionsFresh is the age at which a request starts a new list in the background.
	functionsFresh = time.Second
	// functionsStale is the age at which a request waits for a new list.
	functionsStale = 2 * time.Second
	// functionsPatience is the maximum duration of a list in the background.
	functionsPatience = 10 * time.Second
)

// Function is a function that the gateway can call.
type Function struct {
	endpoint.EndpointInfo
	// Caller calls it: the embedding program's or the owner's.
	Caller endpoint.Caller
}

func (f Function) equal(other Function) bool {
	return f.Caller == other.Caller && reflect.DeepEqual(f.EndpointInfo, other.EndpointInfo)
}

// Functions are the callable functions at one time. It is immutable. While nothing changes, all calls of [Owner] return the same
// pointer, so that users can keep what they derive from it.
type Functions struct {
	// List has one function for each name, those of the embedding program first.
	List []Function

	server string // the owner; empty without one
	byName map[string]*Function
}

// Find returns the function of a name, or nil.
func (f *Functions) Find(name string) *Function { return f.byName[name] }

// functionCache is the only copy of the list of functions in a gateway. Names of models are not cached: each request for a model
// reaches the owner, which decides.
type functionCache struct {
	newest  atomic.Pointer[listedFunctions]
	listing chan struct{} // holds one token while a list is made
	renews  atomic.Bool   // a list is made in the background
}

// listedFunctions is a result with the time when the list began.
type listedFunctions struct {
	*Functions
	began time.Time
}

// Functions implements Owner.
func (o *ownerLink) Functions(ctx context.Context) (*Functions, error) {
	newest := o.functions.newest.Load()
	if newest == nil || newest.server != o.ServerID() {
		return o.ListFunctions(ctx)
	}
	switch age := time.Since(newest.began); {
	case age < functionsFresh:
		return newest.Functions, nil
	case age < functionsStale:
		o.renewFunctions()
		return newest.Functions, nil
	}
	if list, err := o.ListFunctions(ctx); err == nil {
		return list, nil
	}
	return newest.Functions, nil // a call reports whether there is an owner
}

// renewFunctions makes a list in the background, unless one is being made.
func (o *ownerLink) renewFunctions() {
	if !o.functions.renews.CompareAndSwap(false, true) {
		return
	}
	contain.Go(func() {
		defer o.functions.renews.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), functionsPatience)
		defer cancel()
		_, _ = o.ListFunctions(ctx) // best effort: a request that needs the list makes another
	}, nil)
}

// ListFunctions implements Owner. Concurrent calls share a list that began after them.
func (o *ownerLink) ListFunctions(ctx context.Context) (*Functions, error) {
	called := time.Now()
	select {
	case o.functions.listing <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-o.functions.listing }()
	newest := o.functions.newest.Load()
	server, began := o.ServerID(), time.Now()
	if newest != nil && newest.server == server && !newest.began.Before(called) {
		return newest.Functions, nil
	}
	list, err := o.listFunctions(ctx)
	if err != nil {
		return nil, err
	}
	f := &Functions{List: list, server: server}
	if newest != nil && newest.server == server && slices.EqualFunc(newest.List, list, Function.equal) {
		f = newest.Functions
	} else {
		f.byName = make(map[string]*Function, len(list))
		for i := range list {
			f.byName[list[i].Name] = &list[i]
		}
	}
	o.functions.newest.Store(&listedFunctions{f, began})
	return f, nil
}

func (o *ownerLink) listFunctions(ctx context.Context) (list []Function, err error) {
	callers := o.Callers()
	if len(callers) == 0 {
		_, err := o.Client()
		return nil, err
	}
	ctx, unbind := o.Bind(ctx)
	defer unbind()
	for _, caller := range callers {
		infos, err := caller.Endpoints(ctx)
		if err != nil {
			return nil, err
		}
		own := len(list)
		for _, info := range infos {
			if !slices.ContainsFunc(list[:own], func(f Function) bool { return f.Name == info.Name }) {
				list = append(list, Function{info, caller})
			}
		}
	}
	return list, nil
}

// FindFunction returns the function of a name, or nil and the functions that there are. It makes a list before it returns nil.
func FindFunction(ctx context.Context, owner Owner, name string) (*Function, *Functions, error) {
	functions, err := owner.Functions(ctx)
	if err != nil {
		return nil, nil, err
	}
	if f := functions.Find(name); f != nil {
		return f, functions, nil
	}
	if functions, err = owner.ListFunctions(ctx); err != nil {
		return nil, nil, err
	}
	f := functions.Find(name)
	if f == nil {
		if _, err := owner.Caller(name); err != nil { // no owner, which may have it
			return nil, nil, err
		}
	}
	return f, functions, nil
}
