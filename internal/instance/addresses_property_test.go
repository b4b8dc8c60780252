// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// flaky is an API server that refuses some of the writes, and of some others says so
// although it made them.
type flaky struct {
	client.Client
	mu     sync.Mutex
	random *rand.Rand
}

var errRefused = errors.New("refused")

func (f *flaky) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	f.mu.Lock()
	dice := f.random.IntN(20)
	f.mu.Unlock()
	if dice == 0 {
		return errRefused
	}
	if err := f.Client.Patch(ctx, obj, patch, opts...); err != nil || dice != 1 {
		return err
	}
	return errRefused
}

// pools of the three classes: 120, 200 and 500 addresses for 1000 requests, the last
// of them over all three.
var propertyPools = []v1alpha1.AddressSource{
	{CIDR: "10.1.0.0/24", Ranges: []string{"10.1.0.1-10.1.0.125"}, Exclude: []string{"10.1.0.10-10.1.0.13"}, Gateway: "10.1.0.1"},
	{CIDR: "10.2.0.0/24", Ranges: []string{"10.2.0.0-10.2.0.200"}, Gateway: "10.2.0.254"},
	{CIDR: "fd00::/64", Ranges: []string{"fd00::1-fd00::1f4"}, Gateway: "fe80::1"},
}

// A thousand requests at once over three pools, while the API server refuses some of
// the writes, VMs go, and the controller is restarted again and again: no address is
// had twice, none is lost, and who gets none is told why.
func TestAThousandRequestsOverThreePools(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, func(s *pvesim.Scenario) {
		s.Hosts[0].Cores, s.Hosts[0].Memory = 8192, 64*pvesim.TiB
		s.Storages[1].Size = 900 * pvesim.TiB
	})
	random := rand.New(rand.NewPCG(7, 7))
	api := &flaky{Client: w.kube, random: random}
	classes := make([]*v1alpha1.ProxmoxNodeClass, len(propertyPools))
	for n, source := range propertyPools {
		classes[n] = w.class.DeepCopy()
		classes[n].Name = fmt.Sprintf("class-%d", n)
		addresses := v1alpha1.InterfaceAddresses{Name: "net0", Address4: &source}
		if strings.Contains(source.CIDR, ":") {
			addresses = v1alpha1.InterfaceAddresses{Name: "net0", Address6: &source}
		}
		classes[n].Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.InterfaceAddresses{addresses}}
	}

	const rounds, batch = 5, 200
	exhausted := 0
	for round := range rounds {
		p := w.process(frozen, reading(api)) // a restart: what the last one knew is gone
		var all sync.WaitGroup
		var mu sync.Mutex
		for i := range batch {
			class := classes[i%len(classes)]
			claim := w.claim(fmt.Sprintf("c-%d-%d", round, i))
			all.Go(func() {
				_, err := p.Plan(t.Context(), claim, class, nil)
				switch {
				case err == nil:
				case strings.Contains(err.Error(), "are taken"):
					mu.Lock()
					defer mu.Unlock()
					exhausted++
				case !errors.Is(err, errRefused):
					t.Errorf("claim %s: %v", claim.Name, err)
				}
			})
		}
		all.Wait()
		w.expectNoAddressTwice(classes)
		w.dropSome(p, random)
	}
	w.Expect(exhausted).To(BeNumerically(">", 50), "the small pools are too small")

	// Everything goes: everything comes back.
	p := w.process(frozen)
	claims := &karpv1.NodeClaimList{}
	w.Expect(w.kube.List(t.Context(), claims)).To(Succeed())
	for i := range claims.Items {
		w.Expect(w.kube.Delete(t.Context(), &claims.Items[i])).To(Succeed())
		p.Forget(string(claims.Items[i].UID))
	}
	for i := range 121 {
		claim := w.claim(fmt.Sprintf("again-%d", i))
		_, err := p.Plan(t.Context(), claim, classes[0], nil)
		if i < 120 {
			w.Expect(err).NotTo(HaveOccurred(), "address %d of 120 was lost", i+1)
			continue
		}
		w.Expect(err).To(MatchError(ContainSubstring("all 120 addresses of 10.1.0.0/24 are taken")))
	}
}

// expectNoAddressTwice looks at what stands on the claims, which is all that counts.
func (w *world) expectNoAddressTwice(classes []*v1alpha1.ProxmoxNodeClass) {
	w.t.Helper()
	claims := &karpv1.NodeClaimList{}
	w.Expect(w.kube.List(w.t.Context(), claims)).To(Succeed())
	owners := map[netip.Addr]string{}
	for i := range claims.Items {
		in, ok, err := instance.ReadIntent(&claims.Items[i])
		w.Expect(err).NotTo(HaveOccurred())
		if !ok {
			continue
		}
		for _, addr := range in.Network.Addresses() {
			w.Expect(owners).NotTo(HaveKey(addr), "%s and %s have the same", claims.Items[i].Name, owners[addr])
			owners[addr] = claims.Items[i].Name
		}
	}
	w.Expect(owners).NotTo(BeEmpty())
	w.Expect(len(classes)).To(Equal(3))
}

// dropSome lets a third of the claims go, as core does with those without a VM: some
// while the controller watches, some while it is down.
func (w *world) dropSome(p *process, random *rand.Rand) {
	w.t.Helper()
	claims := &karpv1.NodeClaimList{}
	w.Expect(w.kube.List(w.t.Context(), claims)).To(Succeed())
	for i := range claims.Items {
		if random.IntN(3) > 0 {
			continue
		}
		w.Expect(w.kube.Delete(w.t.Context(), &claims.Items[i])).To(Succeed())
		if random.IntN(2) == 0 {
			p.Forget(string(claims.Items[i].UID))
		}
	}
}
