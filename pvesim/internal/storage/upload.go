// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"crypto/md5"  //nolint:gosec // clients choose the checksum's algorithm
	"crypto/sha1" //nolint:gosec // Proxmox's digests are SHA-1
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"hash"
	"path"
	"regexp"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

func (f *files) postUpload(_ context.Context, r *api.Request) (api.Response, error) {
	s, err := f.uploadTarget(r)
	if err != nil {
		return api.Response{}, err
	}
	content := r.Params.Values["content"]
	name, err := fileName(content, r.Params.Values["filename"])
	if err != nil {
		return api.Response{}, err
	}
	if r.Upload == nil {
		return api.Response{}, api.Failf("missing temporary file name")
	}
	upload := *r.Upload
	t := f.k.Fork(r, "imgcopy", "", func(_ context.Context, t *tasks.Task) error {
		t.Logf("starting file import from: %s", upload.Temp)
		if want, ok := r.Value("checksum"); ok {
			if err := verifyChecksum(t, r.Params.Values["checksum-algorithm"], upload.Data, want); err != nil {
				return err
			}
		}
		target := s.FilePath(content + "/" + name)
		t.Logf("target node: %s", r.Host)
		t.Logf("target file: %s", target)
		t.Logf("file size is: %d", len(upload.Data))
		t.Logf("command: cp -- %s %s", upload.Temp, target)
		f.PutFile(r.Host, s.ID, content+"/"+name, upload.Data)
		t.Logf("finished file import successfully")
		return nil
	})
	return kernel.TaskResponse(t), nil
}

// uploadTarget returns the storage of an upload or download. It fails if the storage does not support the content.
func (f *files) uploadTarget(r *api.Request) (*Storage, error) {
	f.k.Mu.Lock()
	defer f.k.Mu.Unlock()
	s, err := f.CheckStorage(r.Params.Values["storage"], r.Host)
	if err != nil {
		return nil, err
	}
	content := r.Params.Values["content"]
	switch {
	case !s.Kind().FileBased:
		return nil, api.Failf("can't upload to storage type '%s'", s.Type)
	case !s.HasContent(content):
		return nil, api.Failf("storage '%s' does not support '%s' content", s.ID, content)
	}
	return s, nil
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
func verifyChecksum(t *tasks.Task, algorithm string, data []byte, want string) error {
	h := algorithms[algorithm]()
	h.Write(data)
	got := hex.EncodeToString(h.Sum(nil))
	if !strings.EqualFold(got, want) {
		t.Logf("calculating checksum...")
		return api.Failf("checksum mismatch: got '%s' != expect '%s'", got, want)
	}
	t.Logf("calculating checksum...OK, checksum verified")
	return nil
}
