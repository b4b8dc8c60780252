// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"cmp"
	"encoding/binary"
	"net/http"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

// Images is a web server with disk images, all of the same size.
type Images struct {
	// URL of the server. It serves /NAME.qcow2 for any name but missing.
	URL string

	mu      sync.Mutex
	fetched map[string]int
	held    map[string]chan struct{}
}

// ImageDisk is the size of the disk in an image.
const ImageDisk = 2 << 30

// ServeImages starts a web server with images of the given size. It ends with the test.
func ServeImages(t testing.TB, bytes int) *Images {
	t.Helper()
	// The header of a qcow2 file contains the size of its disk.
	image := make([]byte, bytes)
	copy(image, "QFI\xfb\x00\x00\x00\x03")
	binary.BigEndian.PutUint64(image[24:], ImageDisk)
	images := &Images{fetched: map[string]int{}, held: map[string]chan struct{}{}}
	images.URL = ServeWeb(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		images.mu.Lock()
		held := images.held[r.URL.Path]
		images.mu.Unlock()
		if held != nil {
			select {
			case <-held:
			case <-r.Context().Done():
				return
			}
		}
		if r.URL.Path == "/missing.qcow2" {
			http.NotFound(w, r)
			return
		}
		n, _ := w.Write(image)
		images.mu.Lock()
		defer images.mu.Unlock()
		images.fetched[r.URL.Path] += n
	}))
	return images
}

// Fetched returns how many bytes of an image were sent.
func (i *Images) Fetched(path string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.fetched[path]
}

// Hold blocks downloads of an image until release is called.
func (i *Images) Hold(path string) (release func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	held := make(chan struct{})
	i.held[path] = held
	return sync.OnceFunc(func() { close(held) })
}

// NewTemplates returns a provider of managed templates.
func NewTemplates(deps template.Deps, grace time.Duration) *template.Provider {
	deps.Settings.VMIDs, deps.Settings.Builds = placement.Range{From: 1000, To: 19999}, 16
	deps.Settings.TaskTimeout, deps.Settings.GracePeriod = cmp.Or(deps.Settings.TaskTimeout, 20*time.Second), grace
	deps.Settings.HostRemovedAfter = 10 * time.Minute
	if deps.Recorder == nil {
		deps.Recorder = &Recorder{}
	}
	return template.NewProvider(deps)
}

// Templates returns a provider of managed templates.
func (w *Env) Templates() *template.Provider {
	return NewTemplates(template.Deps{
		Clients: w.Clients, Inventory: w.Inventory, Clock: w.Clock, KubeCluster: w.KubeCluster, Recorder: w.Events,
		RenderBootData: w.Boot.PreparationImage,
	}, time.Second)
}

// ManagedTemplate creates a ProxmoxTemplate of an image, with the defaults of the API server.
func (o *Objects) ManagedTemplate(url string, changes ...func(*v1alpha1.ProxmoxTemplate)) *v1alpha1.ProxmoxTemplate {
	o.T.Helper()
	return create(o, &v1alpha1.ProxmoxTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: o.Named("managed")},
		Spec: v1alpha1.ProxmoxTemplateSpec{
			SourceImage: v1alpha1.SourceImage{URL: url},
			StorageIDs:  []string{"local", "local-lvm"},
			Network:     []v1alpha1.NetworkInterface{{Bridge: "vmbr0", Model: "virtio", MTU: 1500}},
			Machine:     "q35", BIOS: "seabios", CPU: v1alpha1.CPU{Type: "x86-64-v2-AES"},
		},
	}, changes)
}
