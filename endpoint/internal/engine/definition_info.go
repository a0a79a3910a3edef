package engine

import (
	"github.com/sharedtensor/sharedtensor/endpoint/internal/codec"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Info returns the description of the endpoint for clients.
func (d *Definition) Info() message.EndpointInfo {
	if d.Describe != nil {
		info := d.Describe()
		info.Uncached = d.Uncached.Load()
		return info
	}
	o := d.Options
	info := message.EndpointInfo{
		Name: d.Name, Task: o.Task, Managed: o.Managed, Stream: d.Stream != nil, Cache: o.Cached, SingleFlight: o.Cached && !o.NoSingleFlight,
		Serialized: o.Serialized != nil, Writable: o.Writable, Timeout: int64(o.Timeout), In: codec.Clipped(codec.TypeName(d.In)), Out: codec.Clipped(codec.TypeName(d.Out)),
		InFields: codec.DescribeFields(d.In), OutFields: codec.DescribeFields(d.Out), Uncached: d.Uncached.Load(),
	}
	if o.CacheKey != nil {
		info.CacheKey = o.CacheKey.Text
	}
	return info
}
