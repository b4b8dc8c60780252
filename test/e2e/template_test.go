// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestImageChange: nodes are made from a ProxmoxTemplate, and its image changes while
// they run. There is always a template to clone from, nodes are replaced one after the
// other as the budget says, and in the end Proxmox holds as much as before.
func TestImageChange(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it can download from this process"), guestsThatJoin())
	w := newWorld(t, setup{args: []string{"--template-grace=2s"}})
	before, err := w.holdings(t.Context())
	must(t, err)
	images := imageServer(t)
	template := &v1alpha1.ProxmoxTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "managed"},
		Spec: v1alpha1.ProxmoxTemplateSpec{
			SourceImage: v1alpha1.SourceImage{URL: images + "/noble-1.img"},
			StorageIDs:  []string{"local", "local-lvm"},
			Network:     []v1alpha1.NetworkInterface{{Bridge: "vmbr0"}},
			Agent:       &v1alpha1.Agent{Enabled: true},
		},
	}
	must(t, w.kube.Create(t.Context(), template))
	const nodes = 3
	p := w.newPool(t, "managed", func(kit *harness.Kit) {
		kit.Class.Spec.InstanceTemplateRef = v1alpha1.InstanceTemplateReference{Kind: v1alpha1.ProxmoxTemplateKind, Name: template.Name}
		kit.Pool.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "1"}}
		kit.Pool.Spec.Template.Spec.Requirements = append(kit.Pool.Spec.Template.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
			Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"c1.2VCPU-4GB"},
		})
	})
	d := harness.Deployment(p.name, nodes)
	d.Spec.Template.Spec.NodeSelector = map[string]string{karpv1.NodePoolLabelKey: p.name}
	d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1200m")} // one per node
	must(t, w.kube.Create(t.Context(), d))
	p.podsRun(t, nodes)
	first := p.imageOfAll(t, nodes, "")
	atFirst, err := w.held(t.Context())
	must(t, err)

	watched := p.watchChange(t, nodes)
	must(t, w.kube.Get(t.Context(), client.ObjectKeyFromObject(template), template))
	template.Spec.SourceImage.URL = images + "/noble-2.img"
	must(t, w.kube.Update(t.Context(), template))
	p.imageOfAll(t, nodes, first)
	p.podsRun(t, nodes)
	w.eventually(t, "the old generation to go", func(ctx context.Context) error {
		after, err := w.held(ctx)
		if err == nil && after != atFirst {
			err = fmt.Errorf("there are %+v, want %+v", after, atFirst)
		}
		return err
	})
	watched()

	p.scaleToZero(t)
	p.nothingLeft(t)
	must(t, w.kube.Delete(t.Context(), p.kit.Pool))
	must(t, w.kube.Delete(t.Context(), template))
	w.asBefore(t, before)
	w.eventually(t, "the template to be gone", func(ctx context.Context) error {
		if err := w.kube.Get(ctx, client.ObjectKeyFromObject(template), template); client.IgnoreNotFound(err) != nil || err == nil {
			return fmt.Errorf("it is still there: %w", err)
		}
		return nil
	})
}

// imageServer serves a disk image under any name.
func imageServer(t *testing.T) string {
	t.Helper()
	image := make([]byte, 256<<10)
	copy(image, "QFI\xfb\x00\x00\x00\x03")
	binary.BigEndian.PutUint64(image[24:], 2<<30)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(image) }))
	t.Cleanup(server.Close)
	return server.URL
}

// imageOfAll waits until all nodes run from one image, another one than before.
func (p *pool) imageOfAll(t *testing.T, nodes int, before string) string {
	t.Helper()
	var image string
	p.within(t, 2*patience(), fmt.Sprintf("%d nodes of one image", nodes), func(ctx context.Context) error {
		claims, err := p.claims(ctx)
		if err != nil {
			return err
		}
		if len(claims) != nodes {
			return fmt.Errorf("there are %d claims, want %d", len(claims), nodes)
		}
		image = claims[0].Status.ImageID
		for i := range claims {
			if claims[i].Status.ImageID != image || image == before || image == "" {
				return fmt.Errorf("claim %s runs image %q", claims[i].Name, claims[i].Status.ImageID)
			}
			if err := settled(&claims[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return image
}

// held is what Proxmox holds: templates of ours, images, and what its storages say is used.
type held struct {
	templates, images int
	used              int64
}

func (w *world) held(ctx context.Context) (held, error) {
	var out held
	guests, err := w.api.Guests(ctx)
	if err != nil {
		return out, err
	}
	for _, guest := range guests {
		if guest.Template && strings.Contains(guest.Notes(), w.cluster) {
			out.templates++
		}
	}
	volumes, err := w.api.Volumes(ctx)
	if err != nil {
		return out, err
	}
	for _, volume := range volumes {
		if strings.Contains(volume.ID, ":import/") {
			out.images++
		}
	}
	hosts, err := w.api.Hosts(ctx)
	for host := range hosts {
		var rows []struct{ Used int64 }
		if err := w.api.Call(ctx, http.MethodGet, "/nodes/"+host+"/storage", nil, &rows); err != nil {
			return out, err
		}
		for _, row := range rows {
			out.used += row.Used
		}
	}
	return out, err
}

// watchChange holds the moments of a change against what was promised: the class is
// ready on every host all the time, and never more than one node is taken at once.
func (p *pool) watchChange(t *testing.T, nodes int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			class := &v1alpha1.ProxmoxNodeClass{}
			err := p.kube.Get(ctx, client.ObjectKey{Name: p.kit.Class.Name}, class)
			if err == nil && (!class.StatusConditions().Root().IsTrue() || len(class.Status.SelectedZones) != 3) {
				t.Errorf("there was a moment when the class had zones %v: %s", class.Status.SelectedZones, class.StatusConditions().Root().Message)
				return
			}
			claims, err := p.claims(ctx)
			going := slices.DeleteFunc(claims, func(c karpv1.NodeClaim) bool { return c.DeletionTimestamp.IsZero() })
			if err == nil && (len(going) > 1 || len(claims) > nodes+2) {
				t.Errorf("%d of %d nodes were taken at once, the budget is 1", len(going), len(claims))
				return
			}
			time.Sleep(pause / 2)
		}
	})
	return func() { cancel(); watching.Wait() }
}
