// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"
	"crypto/md5"  //nolint:gosec // clients choose the checksum's algorithm
	"crypto/sha1" //nolint:gosec // likewise
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

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// maxFile bounds what the simulator keeps of a downloaded image in memory.
const maxFile = 2 << 30

var algorithms = map[string]func() hash.Hash{
	"md5": md5.New, "sha1": sha1.New, "sha224": sha256.New224, "sha256": sha256.New, "sha384": sha512.New384, "sha512": sha512.New,
}

var (
	isoName      = regexp.MustCompile(`(?i)\.(?:iso|img)$`)
	templateName = regexp.MustCompile(`\.tar\.(?:gz|xz|zst|bz2)$`)
	importName   = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.\-+]*\.(?:ova|ovf|qcow2|raw|vmdk)$`)
	unsafe       = regexp.MustCompile(`[^a-zA-Z0-9_.-]`)
)

// fileName normalises a client's file name and checks its extension.
func fileName(content, name string) (string, error) {
	name = unsafe.ReplaceAllString(path.Base(strings.ReplaceAll(name, `\`, "/")), "_")
	switch {
	case content == "iso" && !isoName.MatchString(name), content == "vztmpl" && !templateName.MatchString(name):
		return "", badParam("filename", "wrong file extension")
	case content == "import" && !importName.MatchString(name):
		return "", badParam("filename", "invalid filename or wrong extension")
	}
	return name, nil
}

// uploadTarget finds the storage of an upload or download and checks that it takes such files.
func (e *Engine) uploadTarget(r *Request) (*Storage, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s, err := e.checkStorage(r.Params.Values["storage"], r.host)
	if err != nil {
		return nil, err
	}
	content := r.Params.Values["content"]
	switch {
	case !s.kind().fileBased:
		return nil, failf("can't upload to storage type '%s'", s.Type)
	case !s.holds(content):
		return nil, failf("storage '%s' does not support '%s' content", s.ID, content)
	}
	return s, nil
}

func (e *Engine) postUpload(_ context.Context, r *Request) (Response, error) {
	s, err := e.uploadTarget(r)
	if err != nil {
		return Response{}, err
	}
	content := r.Params.Values["content"]
	name, err := fileName(content, r.Params.Values["filename"])
	if err != nil {
		return Response{}, err
	}
	if r.Upload == nil {
		return Response{}, failf("missing temporary file name")
	}
	upload := *r.Upload
	t := e.fork(r, "imgcopy", "", func(_ context.Context, t *tasks.Task) error {
		t.Logf("starting file import from: %s", upload.Temp)
		if want, ok := r.value("checksum"); ok {
			if err := verify(t, r.Params.Values["checksum-algorithm"], upload.Data, want); err != nil {
				return err
			}
		}
		target := s.file(content + "/" + name)
		t.Logf("target node: %s", r.host)
		t.Logf("target file: %s", target)
		t.Logf("file size is: %d", len(upload.Data))
		t.Logf("command: cp -- %s %s", upload.Temp, target)
		e.PutFile(r.host, s.ID, content+"/"+name, upload.Data)
		t.Logf("finished file import successfully")
		return nil
	})
	return upid(t), nil
}

// verify compares a checksum; the log shows the result on the line that announced it.
func verify(t *tasks.Task, algorithm string, data []byte, want string) error {
	h := algorithms[algorithm]()
	h.Write(data)
	got := hex.EncodeToString(h.Sum(nil))
	if !strings.EqualFold(got, want) {
		t.Logf("calculating checksum...")
		return failf("checksum mismatch: got '%s' != expect '%s'", got, want)
	}
	t.Logf("calculating checksum...OK, checksum verified")
	return nil
}

func (e *Engine) postDownload(_ context.Context, r *Request) (Response, error) {
	s, err := e.uploadTarget(r)
	if err != nil {
		return Response{}, err
	}
	content := r.Params.Values["content"]
	name, err := fileName(content, r.Params.Values["filename"])
	if err != nil {
		return Response{}, err
	}
	t := e.fork(r, "download", name, func(ctx context.Context, t *tasks.Task) error {
		return e.download(ctx, t, r, s, content+"/"+name)
	})
	return upid(t), nil
}

func (e *Engine) download(ctx context.Context, t *tasks.Task, r *Request, s *Storage, name string) error {
	source, target := r.Params.Values["url"], s.file(name)
	t.Logf("downloading %s to %s", source, target)
	e.mu.Lock()
	old := e.volume(r.host, s.ID+":"+name)
	oldData := e.data(old)
	e.mu.Unlock()
	want, checked := r.value("checksum")
	if old != nil {
		if !checked {
			return failf("refusing to override existing file '%s'", target)
		}
		if err := verify(t, r.Params.Values["checksum-algorithm"], oldData, want); err != nil {
			return failf("mismatching file hash for '%s' - %v", target, err)
		}
		t.Logf("file already exists, no need to download")
		return nil
	}
	data, err := e.fetch(ctx, t, r.host, s, fetchJob{source: source, target: target})
	if err != nil {
		return err
	}
	if checked {
		if err := verify(t, r.Params.Values["checksum-algorithm"], data, want); err != nil {
			return err
		}
	}
	e.PutFile(r.host, s.ID, name, data)
	t.Logf("download of '%s' to '%s' finished", source, target)
	return nil
}

// fetchJob is a download after its checks.
type fetchJob struct{ source, target string }

// fetch downloads for real and writes the lines that wget prints.
func (e *Engine) fetch(ctx context.Context, t *tasks.Task, host string, s *Storage, job fetchJob) ([]byte, error) {
	t.Logf("--%s--  %s", e.Clock.Now().Format(time.DateTime), job.source)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, job.source, nil)
	if err != nil {
		return nil, failf("download failed: %v", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, failf("download failed: Connecting to %s... failed: %s.", req.URL.Host, connectError(err))
	}
	defer func() { _ = resp.Body.Close() }()
	t.Logf("Connecting to %s... connected.", req.URL.Host)
	t.Logf("HTTP request sent, awaiting response... %s", resp.Status)
	if resp.StatusCode >= http.StatusBadRequest {
		t.Logf("%s ERROR %s.", e.Clock.Now().Format(time.DateTime), strings.Replace(resp.Status, " ", ": ", 1))
		return nil, failf("download failed: exit code 8")
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxFile))
	if err != nil {
		return nil, failf("download failed: exit code 4")
	}
	temporary := fmt.Sprintf("%s.tmp_dwnl.%d", job.target, t.UPID.PID)
	t.Logf("Length: %d (%s) [%s]", len(data), short(len(data)), cmp.Or(resp.Header.Get("Content-Type"), "application/octet-stream"))
	t.Logf("Saving to: '%s'", temporary)
	e.mu.Lock()
	full := s.Full || int64(len(data)) > s.Size-e.usage(s, host)
	e.mu.Unlock()
	if full {
		t.Logf("Cannot write to '%s' (No space left on device).", temporary)
		return nil, failf("download failed: exit code 3")
	}
	if err := e.transfer(ctx, t, host, len(data)); err != nil {
		return nil, err
	}
	t.Logf("%s (500 MB/s) - '%s' saved [%d/%d]", e.Clock.Now().Format(time.DateTime), temporary, len(data), len(data))
	return data, nil
}

// wget prints a dot per MiB, 8 in a row, 32 to a line; a line is in the log when it is complete.
const (
	dotBytes  = 1 << 20
	rowDots   = 8
	lineBytes = 32 * dotBytes
)

// transfer takes the time that the host's line to the world needs, and logs the progress.
func (e *Engine) transfer(ctx context.Context, t *tasks.Task, host string, size int) error {
	e.mu.Lock()
	rate := e.host(host).DownloadRate
	e.mu.Unlock()
	for start := 0; start == 0 || start < size; start += lineBytes {
		end := min(start+lineBytes, size)
		if rate > 0 {
			took := time.Duration(float64(end-start) / float64(rate) * float64(time.Second))
			if err := e.Clock.Sleep(ctx, took); err != nil {
				return err
			}
		}
		percent := 100
		if size > 0 {
			percent = end * 100 / size
		}
		t.Logf("%6dK %-35s %3d%%  500M=0s", start>>10, dots((end-start)/dotBytes), percent)
	}
	return nil
}

func dots(n int) string {
	var rows []string
	for ; n > 0; n -= rowDots {
		rows = append(rows, strings.Repeat(".", min(n, rowDots)))
	}
	return strings.Join(rows, " ")
}

// short prints a size as wget does: three digits and a unit.
func short(n int) string {
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

func connectError(err error) string {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "Connection refused"
	}
	return err.Error()
}

func (e *Engine) getURLMetadata(ctx context.Context, r *Request) (Response, error) {
	source := r.Params.Values["url"]
	u, err := url.Parse(source)
	if err != nil {
		return Response{}, badParam("url", "value does not match the regex pattern")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, source, nil)
	if err != nil {
		return Response{}, failf("invalid url: %v", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return Response{}, failf("invalid server response: '500 Can't connect to %s (%s)'", u.Host, connectError(err))
	}
	_ = resp.Body.Close()
	if resp.StatusCode >= http.StatusBadRequest {
		return Response{}, failf("invalid server response: '%s'", resp.Status)
	}
	out := row{"size": resp.ContentLength, "filename": path.Base(u.Path)}
	if mime := resp.Header.Get("Content-Type"); mime != "" {
		out["mimetype"] = mime
	}
	return Response{Data: out}, nil
}
