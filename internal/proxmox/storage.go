// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"bytes"
	"context"
	"fmt"
	"mime/multipart"
	"net/http"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// StorageClient reads and writes the volumes of storages.
type StorageClient interface {
	// UploadISO stores an image as iso content and replaces one of the same name. The
	// task runs on the Host that receives the upload, which may differ from the
	// target: see UPID.Host.
	UploadISO(ctx context.Context, host, storage, name string, image []byte) (UPID, error)
	// DownloadImage starts the download of a disk image by a Host as import content.
	// It does not replace an existing image. Proxmox writes to another name until the
	// checksum is verified, so an existing image is complete.
	DownloadImage(ctx context.Context, req DownloadRequest) (UPID, error)
	// Volumes returns a storage's volumes of one content type ("iso", "images"...).
	Volumes(ctx context.Context, host, storage, content string) ([]Volume, error)
	// CreateVolume allocates a disk. Its VMID is the owner in its name, which need not
	// exist. It returns ErrExists if there is a volume of that name.
	CreateVolume(ctx context.Context, host string, volume NewVolume) error
	// VolumePath returns a volume's path on its Host: a file, for ISO images.
	VolumePath(ctx context.Context, host, volid string) (string, error)
	// DeleteVolume deletes a volume; one that does not exist is not an error. The UPID
	// is empty if Proxmox did not need a task. Proxmox does not check whether the
	// volume is in use: a VM with a deleted ISO in a drive does not start.
	DeleteVolume(ctx context.Context, host, volid string) (UPID, error)
}

type storageClient struct{ *caller }

// isoName matches names that Proxmox keeps. It silently replaces other characters.
var isoName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*\.(iso|img)$`)

func (c storageClient) UploadISO(ctx context.Context, host, storage, name string, image []byte) (UPID, error) {
	req, err := newUpload(at("/nodes/{node}/storage/{storage}/upload", host, storage), name, image)
	if err != nil {
		return "", fmt.Errorf("uploading %s to storage %s on host %s: %w", name, storage, host, err)
	}
	return c.startTask(ctx, req, "uploading %s to storage %s on host %s", name, storage, host)
}

// newUpload encodes an image as multipart. Proxmox requires the fields before the file.
func newUpload(e endpoint, name string, image []byte) (request, error) {
	if !isoName.MatchString(name) {
		return request{}, &InvalidError{Parameters: map[string]string{
			"filename": fmt.Sprintf("found %q, want letters, digits, and \"_.-\", ending in .iso or .img", name),
		}}
	}
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	// Writes to a buffer do not fail.
	_ = form.WriteField("content", "iso")
	file, _ := form.CreateFormFile("filename", name)
	_, _ = file.Write(image)
	_ = form.Close()
	return request{method: http.MethodPost, endpoint: e, contentType: form.FormDataContentType(), body: body.Bytes()}, nil
}

// DownloadRequest are the parameters of a download.
type DownloadRequest struct {
	Host    string
	Storage string
	// Name of the file. Its extension determines the format: qcow2, raw or vmdk.
	Name         string
	URL          string
	Checksum     string // empty = not verified
	ChecksumType string
}

func (c storageClient) DownloadImage(ctx context.Context, req DownloadRequest) (UPID, error) {
	body := parameters{"content": "import", "filename": req.Name, "url": req.URL}
	if req.Checksum != "" {
		body["checksum"], body["checksum-algorithm"] = req.Checksum, req.ChecksumType
	}
	return c.startTask(ctx, newRequest(http.MethodPost, at("/nodes/{node}/storage/{storage}/download-url", req.Host, req.Storage), body),
		"downloading %s to storage %s on host %s", req.URL, req.Storage, req.Host)
}

// Volume is an entry of a storage's content.
type Volume struct {
	ID        string // storage:iso/name.iso
	Format    string
	SizeBytes int64
	VMID      int
	Created   time.Time
}

func (c storageClient) Volumes(ctx context.Context, host, storage, content string) ([]Volume, error) {
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
		return nil, fmt.Errorf("listing %s content of storage %s on host %s: %w", content, storage, host, err)
	}
	volumes := make([]Volume, 0, len(rows))
	for _, row := range rows {
		volume := Volume{ID: row.VolID, Format: row.Format, SizeBytes: row.Size.whole(), VMID: int(row.VMID.whole())}
		if row.CTime != 0 {
			volume.Created = time.Unix(row.CTime.whole(), 0)
		}
		volumes = append(volumes, volume)
	}
	return volumes, nil
}

// RetainedVMID is the owner in the names of retained disks. No VM has it: Proxmox deletes a
// disk only with the VM whose VMID is in its name.
const RetainedVMID = 999_999_999

// NewVolume is a disk to allocate.
type NewVolume struct {
	// ID is storage:vm-VMID-name, or storage:VMID/vm-VMID-name.raw on storages with files.
	ID   string
	VMID int
	GiB  int64
}

func (c storageClient) CreateVolume(ctx context.Context, host string, volume NewVolume) error {
	storage, name, _ := strings.Cut(volume.ID, ":")
	body := parameters{"vmid": strconv.Itoa(volume.VMID), "filename": path.Base(name), "size": strconv.FormatInt(volume.GiB, 10) + "G", "format": "raw"}
	var id string
	if err := c.post(ctx, at("/nodes/{node}/storage/{storage}/content", host, storage), body, &id); err != nil {
		return fmt.Errorf("creating volume %s on host %s: %w", volume.ID, host, err)
	}
	if id != volume.ID {
		return fmt.Errorf("creating volume %s on host %s: %w: Proxmox created %q", volume.ID, host, ErrFailed, id)
	}
	return nil
}

func (c storageClient) VolumePath(ctx context.Context, host, volid string) (string, error) {
	storage, _, _ := strings.Cut(volid, ":")
	var volume struct{ Path string }
	if err := c.get(ctx, at("/nodes/{node}/storage/{storage}/content/{volume}", host, storage, volid), &volume); err != nil {
		return "", fmt.Errorf("reading the path of volume %s on host %s: %w", volid, host, err)
	}
	return volume.Path, nil
}

func (c storageClient) DeleteVolume(ctx context.Context, host, volid string) (UPID, error) {
	storage, _, ok := strings.Cut(volid, ":")
	if !ok {
		return "", &InvalidError{Parameters: map[string]string{"volume": fmt.Sprintf("found %q, want storage:volume", volid)}}
	}
	var upid UPID
	err := c.remove(ctx, at("/nodes/{node}/storage/{storage}/content/{volume}", host, storage, volid), &upid)
	if err != nil {
		return "", fmt.Errorf("deleting volume %s on host %s: %w", volid, host, err)
	}
	return upid, nil
}
