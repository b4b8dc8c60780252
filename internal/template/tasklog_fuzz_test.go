// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Progress and cause of a failure are read from any log of a download.
func FuzzDownloadLog(f *testing.F) {
	for _, seed := range []string{
		"downloading https://a.example/x.qcow2 to /var/lib/vz/import/x.qcow2\n 98304K ........ ........ 12%  112M 5s\n131072K ........ 100%  110M=1s",
		"2026-01-01 00:00:00 ERROR 404: Not Found.\ndownload failed: 404", "wget: write error: No space left on device", " 999% ", "",
	} {
		f.Add(seed, "checksum mismatch: got 'abc' != expect 'def'")
		f.Add(seed, "exit code 8")
	}
	f.Fuzz(func(t *testing.T, log, exit string) {
		lines := strings.Split(log, "\n")
		if percent := parseProgress(lines); percent != "" {
			if n, err := strconv.Atoi(percent); err != nil || n < 0 || n > 999 {
				t.Errorf("the progress is %q", percent)
			}
		}
		cause := proxmox.TaskStatus{UPID: "UPID:pve1:00003790:00053A7E:6AF9038E:download:x:a@pve!b:", Exit: exit}.Err()
		if cause == nil {
			return
		}
		desired := Desired{Spec: v1alpha1.ProxmoxTemplateSpec{SourceImage: v1alpha1.SourceImage{URL: "https://a.example/x.qcow2"}}}
		if err := explainDownload(cause, lines, desired, Location{}, mirror{name: "url", redacted: "https://a.example/x.qcow2"}); err == nil || !errors.Is(err, cause) || !strings.HasPrefix(err.Error(), "downloading the image: ") {
			t.Errorf("the failure %v is explained as %v", cause, err)
		}
	})
}

var safeImageName = regexp.MustCompile(`^[A-Za-z0-9_.-]+-[0-9a-f]{24}\.(qcow2|raw|vmdk)$`)

// An image has a name that Proxmox accepts. Its key is read from the name, and only by the
// Kubernetes cluster that downloaded it.
func FuzzImageKey(f *testing.F) {
	f.Add("https://a.example/noble.img", "", "local:import/a-00000000000000000000000a.qcow2", "cluster-1")
	f.Add("https://a.example/x", "a b.raw", "", "")
	f.Add("https://a.example/%2e%2e/x.qcow2", "../../etc.qcow2", "", "")
	f.Fuzz(func(t *testing.T, url, name, volume, cluster string) {
		if key, ok := parseImageKey(volume, cluster); ok != (key != "") || (ok && !strings.Contains(volume, key)) {
			t.Errorf("the key %q was read from %q", key, volume)
		}
		image, err := NewImage(v1alpha1.SourceImage{URL: url, ImageName: name}, cluster)
		if err != nil {
			return
		}
		if !safeImageName.MatchString(image.Name) {
			t.Errorf("the name is %q", image.Name)
		}
		if key, ok := parseImageKey("local:import/"+image.Name, cluster); !ok || key != image.Key || !image.hasName(image.Name) {
			t.Errorf("image %q has the key %q, read as %q", image.Name, image.Key, key)
		}
		if _, ok := parseImageKey(image.Name, cluster+"x"); ok && clusterKey(cluster) != clusterKey(cluster+"x") {
			t.Errorf("image %q is owned by another cluster", image.Name)
		}
	})
}
