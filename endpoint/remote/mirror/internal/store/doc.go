// Package store finds models that lie as safetensors files at other places: in a folder, at the Hugging Face hub, in an
// OCI registry, in a bucket of S3.
//
//	place, err := store.Open("oci://ghcr.io/org/model:v1", store.Options{})
//	model, err := place.Find(ctx)             // what is there now
//	body, err := model.Files[0].Open(ctx, begin, end)
//
// Whatever a place says is checked by who uses it: sizes and headers before memory is taken, and bytes by their digest
// where the place has one. Credentials go to the host that they are for, also where it redirects elsewhere.
package store
