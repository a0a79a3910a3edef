// Package store finds models stored as safetensors files in a folder, on the Hugging Face hub, in an OCI registry, or
// in an S3 bucket.
//
//	place, err := store.Open("oci://ghcr.io/org/model:v1", store.Options{})
//	model, err := place.Find(ctx)             // the current version
//	body, err := model.Files[0].Open(ctx, begin, end)
//
// Callers must validate the data of a place: sizes and headers before they allocate memory, and content by its digest
// if the place provides one. Credentials are sent only to the host that they belong to, also if it redirects to another
// one.
package store
