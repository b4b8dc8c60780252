// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"cmp"
	"context"
	"crypto/md5"  //nolint:gosec // clients choose the checksum's algorithm
	"crypto/sha1" //nolint:gosec // Proxmox's digests are SHA-1
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

func (f *files) postUpload(_ context.Context, r *api.Request) (api.Response, error) {
	s, name, err := f.uploadTarget(r)
	if err != nil {
		return api.Response{}, err
	}
	if r.Upload == nil {
		return api.Response{}, api.Failf("missing temporary file name")
	}
	upload := *r.Upload
	return kernel.TaskResponse(f.k.Fork(r, "imgcopy", "", func(_ context.Context, t *tasks.Task) error {
		t.Logf("starting file import from: %s", upload.Temp)
		if upload.Cut {
			return api.Failf("failed to stat '%s'", upload.Temp)
		}
		if want, ok := r.Value("checksum"); ok {
			if err := verifyChecksum(t, r.Params.Values["checksum-algorithm"], newBlob(upload.Data), want); err != nil {
				return err
			}
		}
		target := s.FilePath(name)
		t.Logf("target node: %s", r.Host)
		t.Logf("target file: %s", target)
		t.Logf("file size is: %d", len(upload.Data))
		t.Logf("command: cp -- %s %s", upload.Temp, target)
		f.PutFile(r.Host, s.ID, name, upload.Data)
		t.Logf("finished file import successfully")
		return nil
	}))
}

// uploadTarget returns the storage of an upload or download and the name of the new volume, "iso/x.iso". It fails if the
// storage does not support the content.
func (f *files) uploadTarget(r *api.Request) (s *Storage, name string, err error) {
	f.k.Mu.Lock()
	defer f.k.Mu.Unlock()
	s, err = f.CheckStorage(r.Params.Values["storage"], r.Host)
	if err != nil {
		return nil, "", err
	}
	content := r.Params.Values["content"]
	switch {
	case !s.Kind().FileBased:
		return nil, "", api.Failf("can't upload to storage type '%s'", s.Type)
	case !s.HasContent(content):
		return nil, "", api.Failf("storage '%s' does not support '%s' content", s.ID, content)
	}
	name, err = fileName(content, r.Params.Values["filename"])
	return s, content + "/" + name, err
}

var (
	isoName      = regexp.MustCompile(`(?i)\.(?:iso|img)$`)
	templateName = regexp.MustCompile(`\.tar\.(?:gz|xz|zst|bz2)$`)
	importName   = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.\-+]*\.(?:ova|ovf|qcow2|raw|vmdk)$`)
	unsafeChars  = regexp.MustCompile(`[^a-zA-Z0-9_.-]`)
)

// fileName replaces unsafe characters of a file name and checks its extension.
func fileName(content, name string) (string, error) {
	name = unsafeChars.ReplaceAllString(path.Base(strings.ReplaceAll(name, `\`, "/")), "_")
	switch {
	case content == "iso" && !isoName.MatchString(name), content == "vztmpl" && !templateName.MatchString(name):
		return "", api.BadParam("filename", "wrong file extension")
	case content == "import" && !importName.MatchString(name):
		return "", api.BadParam("filename", "invalid filename or wrong extension")
	}
	return name, nil
}

var algorithms = map[string]func() hash.Hash{
	"md5": md5.New, "sha1": sha1.New, "sha224": sha256.New224, "sha256": sha256.New, "sha384": sha512.New384, "sha512": sha512.New,
}

// verifyChecksum compares a checksum and logs the result in one line.
func verifyChecksum(t *tasks.Task, algorithm string, b *blob, want string) error {
	h := algorithms[algorithm]()
	from, err := b.open()
	if err == nil {
		_, err = io.Copy(h, from)
		_ = from.Close() // only read
	}
	if err != nil {
		return err
	}
	got := hex.EncodeToString(h.Sum(nil))
	if !strings.EqualFold(got, want) {
		t.Logf("calculating checksum...")
		return api.Failf("checksum mismatch: got '%s' != expect '%s'", got, want)
	}
	t.Logf("calculating checksum...OK, checksum verified")
	return nil
}

// maxFile is the maximum size of a downloaded image.
const maxFile = 2 << 30

func (f *files) postDownload(_ context.Context, r *api.Request) (api.Response, error) {
	s, name, err := f.uploadTarget(r)
	if err != nil {
		return api.Response{}, err
	}
	return kernel.TaskResponse(f.k.Fork(r, "download", path.Base(name), func(ctx context.Context, t *tasks.Task) error {
		return f.download(ctx, t, r, s, name)
	}))
}

func (f *files) download(ctx context.Context, t *tasks.Task, r *api.Request, s *Storage, name string) error {
	source, target := r.Params.Values["url"], s.FilePath(name)
	t.Logf("downloading %s to %s", source, target)
	f.k.Mu.Lock()
	old := f.Volume(r.Host, s.ID+":"+name)
	oldData := newBlob(nil)
	if old != nil && old.Blob != nil {
		oldData = f.blobs[*old.Blob]
	}
	f.k.Mu.Unlock()
	want, checked := r.Value("checksum")
	if old != nil {
		if !checked {
			return api.Failf("refusing to override existing file '%s'", target)
		}
		if err := verifyChecksum(t, r.Params.Values["checksum-algorithm"], oldData, want); err != nil {
			return api.Failf("mismatching file hash for '%s' - %v", target, err)
		}
		t.Logf("file already exists, no need to download")
		return nil
	}
	data, err := f.fetch(ctx, t, r.Host, s, fetchJob{source: source, target: target, name: name})
	if err != nil {
		return err
	}
	if checked {
		if err := verifyChecksum(t, r.Params.Values["checksum-algorithm"], data, want); err != nil {
			return err
		}
	}
	f.putBlob(r.Host, s.ID, name, data)
	t.Logf("download of '%s' to '%s' finished", source, target)
	return nil
}

// fetchJob is a download that passed its checks.
type fetchJob struct{ source, target, name string }

// fetch downloads a file from its URL and logs the output of wget.
func (f *files) fetch(ctx context.Context, t *tasks.Task, host string, s *Storage, job fetchJob) (*blob, error) {
	t.Logf("--%s--  %s", f.k.Clock.Now().Format(time.DateTime), job.source)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, job.source, nil)
	if err != nil {
		return nil, api.Failf("download failed: %v", err)
	}
	resp, err := f.web.Do(req)
	if err != nil {
		return nil, api.Failf("download failed: Connecting to %s... failed: %s.", req.URL.Host, connectErrorText(err))
	}
	defer func() { _ = resp.Body.Close() }()
	t.Logf("Connecting to %s... connected.", req.URL.Host)
	t.Logf("HTTP request sent, awaiting response... %s", resp.Status)
	if resp.StatusCode >= http.StatusBadRequest {
		t.Logf("%s ERROR %s.", f.k.Clock.Now().Format(time.DateTime), strings.Replace(resp.Status, " ", ": ", 1))
		return nil, api.Failf("download failed: exit code 8")
	}
	data, err := f.receive(job.name, io.LimitReader(resp.Body, maxFile))
	if err != nil {
		return nil, api.Failf("download failed: exit code 4")
	}
	size := int(data.size)
	temporary := fmt.Sprintf("%s.tmp_dwnl.%d", job.target, t.UPID.PID)
	t.Logf("Length: %d (%s) [%s]", size, formatWgetSize(size), cmp.Or(resp.Header.Get("Content-Type"), "application/octet-stream"))
	t.Logf("Saving to: '%s'", temporary)
	f.k.Mu.Lock()
	full := s.Full || data.size > s.Size-f.usage(s, host)
	f.k.Mu.Unlock()
	if full {
		t.Logf("Cannot write to '%s' (No space left on device).", temporary)
		return nil, api.Failf("download failed: exit code 3")
	}
	if err := f.transfer(ctx, t, host, size); err != nil {
		return nil, err
	}
	t.Logf("%s (500 MB/s) - '%s' saved [%d/%d]", f.k.Clock.Now().Format(time.DateTime), temporary, size, size)
	return data, nil
}

// wget prints a dot per MiB, 8 in a group, 32 in a line. The log contains complete lines.
const (
	dotBytes  = 1 << 20
	rowDots   = 8
	lineBytes = 32 * dotBytes
)

// transfer waits as long as the download takes at the bandwidth of the host, and logs the progress.
func (f *files) transfer(ctx context.Context, t *tasks.Task, host string, size int) error {
	f.k.Mu.Lock()
	rate := f.k.Host(host).DownloadRate
	f.k.Mu.Unlock()
	for start := 0; start == 0 || start < size; start += lineBytes {
		end := min(start+lineBytes, size)
		if rate > 0 {
			took := time.Duration(float64(end-start) / float64(rate) * float64(time.Second))
			if err := f.k.Clock.Sleep(ctx, took); err != nil {
				return err
			}
		}
		percent := 100
		if size > 0 {
			percent = end * 100 / size
		}
		t.Logf("%6dK %-35s %3d%%  500M=0s", start>>10, progressDots((end-start)/dotBytes), percent)
	}
	return nil
}

func progressDots(n int) string {
	var rows []string
	for ; n > 0; n -= rowDots {
		rows = append(rows, strings.Repeat(".", min(n, rowDots)))
	}
	return strings.Join(rows, " ")
}

// formatWgetSize returns a size with up to three digits and a unit, like wget.
func formatWgetSize(n int) string {
	f := float64(n)
	for _, unit := range []string{"", "K", "M", "G"} {
		if f < 1024 || unit == "G" {
			if f < 10 && unit != "" {
				return fmt.Sprintf("%.1f%s", f, unit)
			}
			return fmt.Sprintf("%.0f%s", f, unit)
		}
		f /= 1024
	}
	return ""
}

func connectErrorText(err error) string {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "Connection refused"
	}
	return err.Error()
}

func (f *files) getURLMetadata(ctx context.Context, r *api.Request) (api.Response, error) {
	source := r.Params.Values["url"]
	u, err := url.Parse(source)
	if err != nil {
		return api.Response{}, api.BadParam("url", "value does not match the regex pattern")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, source, nil)
	if err != nil {
		return api.Response{}, api.Failf("invalid url: %v", err)
	}
	resp, err := f.web.Do(req)
	if err != nil {
		return api.Response{}, api.Failf("invalid server response: '500 Can't connect to %s (%s)'", u.Host, connectErrorText(err))
	}
	_ = resp.Body.Close()
	if resp.StatusCode >= http.StatusBadRequest {
		return api.Response{}, api.Failf("invalid server response: '%s'", resp.Status)
	}
	out := api.Row{"size": resp.ContentLength, "filename": path.Base(u.Path)}
	api.SetNonEmpty(out, "mimetype", resp.Header.Get("Content-Type"))
	return api.Response{Data: out}, nil
}
