// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	goproxmox "github.com/luthermonson/go-proxmox"
)

// isoName is what Proxmox stores under the name it was given; any other
// character it would quietly replace.
var isoName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*\.(iso|img)$`)

// UploadISO stores an image as iso content, replacing one of that name. The
// Host that receives the upload runs the task, and it may be another one than
// the target: ask the UPID.
func (c *client) UploadISO(ctx context.Context, host, storage, name string, image []byte) (UPID, error) {
	upid, err := c.upload(ctx, at("/nodes/{node}/storage/{storage}/upload", host, storage), name, image)
	if err != nil {
		return "", fmt.Errorf("uploading %s to storage %s on host %s, %w", name, storage, host, err)
	}
	return upid, nil
}

func (c *client) upload(ctx context.Context, e endpoint, name string, image []byte) (UPID, error) {
	if !isoName.MatchString(name) {
		return "", &InvalidError{Parameters: map[string]string{
			"filename": fmt.Sprintf("found %q, want letters, digits, and \"_.-\", ending in .iso or .img", name),
		}}
	}
	// go-proxmox's upload takes no context, so each upload has a client of its
	// own (a few fields; connections are shared) that hands ours in.
	api := c.goProxmox(c.http, goproxmox.WithRequestInterceptor(func(req *http.Request) error {
		return adopt(withEndpoint(ctx, e), req)
	}))
	var upid UPID
	err := c.do(ctx, e, func(context.Context) error {
		fields := map[string]string{"content": "iso"}
		return api.UploadReader(e.String(), fields, name, bytes.NewReader(image), int64(len(image)), &upid)
	}, ErrUnknownOutcome)
	upid, err = started(upid, err)
	if f, ok := errors.AsType[*failure](err); ok && f.cause == nil {
		// A caller who left while the answer was on its way gets what there was of it.
		f.cause = ctx.Err()
	}
	return upid, err
}

// adopt gives a request another context and a body that can be sent again.
func adopt(ctx context.Context, req *http.Request) error {
	body, err := io.ReadAll(req.Body)
	if err = errors.Join(err, req.Body.Close()); err != nil {
		return err
	}
	adopted := req.WithContext(ctx)
	adopted.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	adopted.Body = io.NopCloser(bytes.NewReader(body))
	*req = *adopted
	return nil
}

// Volumes lists a storage's volumes of one content type.
func (c *client) Volumes(ctx context.Context, host, storage, content string) ([]Volume, error) {
	var rows []struct {
		VolID  string
		Format string
		Size   numeric
		VMID   numeric
		CTime  numeric
	}
	e := at("/nodes/{node}/storage/{storage}/content", host, storage)
	if content != "" {
		e = e.with("content", content)
	}
	if err := c.get(ctx, e, &rows); err != nil {
		return nil, fmt.Errorf("listing %s content of storage %s on host %s, %w", content, storage, host, err)
	}
	volumes := make([]Volume, 0, len(rows))
	for _, row := range rows {
		volume := Volume{ID: row.VolID, Format: row.Format, SizeBytes: row.Size.whole(), VMID: int(row.VMID)}
		if row.CTime != 0 {
			volume.Created = time.Unix(row.CTime.whole(), 0)
		}
		volumes = append(volumes, volume)
	}
	return volumes, nil
}

// DeleteVolume removes a volume. Proxmox checks nothing: an ISO that is still
// in a drive goes too, and that VM does not start again.
func (c *client) DeleteVolume(ctx context.Context, host, volid string) (UPID, error) {
	storage, _, ok := strings.Cut(volid, ":")
	if !ok {
		return "", &InvalidError{Parameters: map[string]string{"volume": fmt.Sprintf("found %q, want storage:volume", volid)}}
	}
	var upid UPID
	err := c.delete(ctx, at("/nodes/{node}/storage/{storage}/content/{volume}", host, storage, volid), &upid)
	if err != nil {
		return "", fmt.Errorf("deleting volume %s on host %s, %w", volid, host, err)
	}
	return upid, nil
}

// VolumePath is where a volume is on its Host.
func (c *client) VolumePath(ctx context.Context, host, volid string) (string, error) {
	storage, _, _ := strings.Cut(volid, ":")
	var volume struct{ Path string }
	if err := c.get(ctx, at("/nodes/{node}/storage/{storage}/content/{volume}", host, storage, volid), &volume); err != nil {
		return "", fmt.Errorf("looking for volume %s on host %s, %w", volid, host, err)
	}
	return volume.Path, nil
}
