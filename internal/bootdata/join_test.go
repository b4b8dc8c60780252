// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata_test

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/examples"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/guest"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

func startPlane(t *testing.T) *harness.Plane {
	t.Helper()
	binary := os.Getenv("KUBEPLANE")
	if binary == "" {
		binary = filepath.Join("..", "..", ".cache", "bin", "kubeplane")
	}
	if _, err := os.Stat(binary); err != nil {
		t.Skipf("SKIPPED: no control plane at %s: build it with make, or set KUBEPLANE", binary)
	}
	plane, err := harness.StartPlane(t.Context(), harness.PlaneOptions{Binary: binary, Dir: t.TempDir()})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(plane.Stop)
	return plane
}

// candidate is one VM of the test with its recipe.
type candidate struct {
	recipe string
	claim  bootdata.Claim
	vmid   int
	mac    string
	// address is static: it must be kept without the drive.
	address string
	token   bootdata.Token
	// firmware passes the user-data through QEMU's fw_cfg instead of a drive.
	firmware bool
}

// name returns a unique name: a recipe may be tested with and without firmware.
func (c candidate) name() string {
	if c.firmware {
		return c.recipe + "-fwcfg"
	}
	return c.recipe
}

func candidates() []candidate {
	var out []candidate
	for _, name := range examples.Recipes() {
		out = append(out, candidate{recipe: name})
	}
	out = append(out, candidate{recipe: "flatcar", firmware: true})
	for i := range out {
		c := &out[i]
		c.vmid, c.mac, c.address = 20001+i, fmt.Sprintf("BC:24:11:7D:F3:%02X", i), fmt.Sprintf("192.168.7.%d", 10+i)
		c.claim = bootdata.Claim{Name: c.name() + "-x7k2p", UID: types.UID(fmt.Sprintf("6f1c1d8e-7a39-4e0c-9d6a-0f3b6f0a1b%02x", i))}
	}
	return out
}

// bootDrive is the image that a VM of the recipe boots from, or the Ignition for its
// firmware.
func (c candidate) bootDrive(t *testing.T, plane *harness.Plane) []byte {
	t.Helper()
	g := NewWithT(t)
	data := newData(t)
	templates, values := recipe(t, c.recipe)
	for _, key := range []string{"apiServer", "server"} {
		if _, ok := values[key]; ok {
			values[key] = plane.Server
		}
	}
	data.Values = values
	data.Metadata.Hostname, data.Metadata.InstanceUUID = c.claim.Name, string(c.claim.UID)
	data.Kubernetes.KubeletConfiguration.ProviderID = c.providerID()
	data.Kubernetes.RootCA = string(plane.Config.CAData)
	data.Kubernetes.BootstrapToken = c.token.Value()
	data.Network = bootdata.Network{Interfaces: []bootdata.Interface{{MacAddr: c.mac, Address4: []string{c.address + "/24"}, Gateway4: "192.168.7.1"}}}
	files := render(t, templates, data)
	if c.firmware {
		return files.UserData
	}
	image, err := files.ISO()
	g.Expect(err).NotTo(HaveOccurred())
	return image
}

func (c candidate) providerID() string { return fmt.Sprintf("proxmox://region-1/%d", c.vmid) }

// addTo adds the running VM with its drive to a scenario.
func (c candidate) addTo(scenario *pvesim.Scenario, image []byte) {
	iso := fmt.Sprintf("iso/boot-%d.iso", c.vmid)
	scenario.Files = append(scenario.Files, pvesim.File{Storage: "local", Name: iso, Text: string(image)})
	vm := pvesim.Guest{
		VMID: c.vmid, Name: c.claim.Name, Host: "pve1", Status: "running",
		Config: map[string]string{
			"memory": "6144", "cores": "2", "boot": "order=scsi0;ide2", "agent": "enabled=1",
			"scsi0": fmt.Sprintf("local-lvm:vm-%d-disk-0,size=30G", c.vmid), "ide2": "local:" + iso + ",media=cdrom",
			"net0": "virtio=" + c.mac + ",bridge=vmbr0", "smbios1": "uuid=" + string(c.claim.UID),
		},
	}
	if c.firmware {
		vm.Config["ide2"] = "none,media=cdrom"
		vm.Config["args"] = "-fw_cfg name=opt/org.flatcar-linux/config,file=/var/lib/vz/template/" + iso
	}
	scenario.Guests = append(scenario.Guests, vm)
}

// recipeEnv is one control plane and one Proxmox cluster for all recipes.
type recipeEnv struct {
	plane   *harness.Plane
	api     *harness.API
	runtime *guest.Runtime
	tokens  *bootdata.Tokens
}

// TestRecipesJoin tests boot data end to end: a token in a real API server, the recipe's
// templates, the ISO image, and a VM that only has this image.
func TestRecipesJoin(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	w := recipeEnv{plane: startPlane(t)}
	w.tokens = &bootdata.Tokens{Client: w.plane.Client}
	scenario := pvesim.DefaultScenario(1)
	all := candidates()
	for i := range all {
		var err error
		all[i].token, err = w.tokens.Issue(ctx, all[i].claim)
		g.Expect(err).NotTo(HaveOccurred())
		again, err := w.tokens.Issue(ctx, all[i].claim)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(again.Value()).To(Equal(all[i].token.Value()))
		all[i].addTo(scenario, all[i].bootDrive(t, w.plane))
	}
	w.runtime = guest.NewRuntime(guest.Options{HeartbeatInterval: time.Second, RestartDelay: time.Second, CACerts: w.plane.Config.CAData})
	sim, err := pvesim.New(scenario, pvesim.Options{Speed: 20, Guests: w.runtime})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(sim.Start(ctx)).To(Succeed())
	t.Cleanup(sim.Close)
	w.api, err = harness.NewAPI(harness.Cluster{
		URLs: []string{sim.URL()}, CA: string(sim.CAPEM()), TokenID: pvesim.DefaultTokenID, TokenSecret: pvesim.DefaultTokenSecret,
	})
	g.Expect(err).NotTo(HaveOccurred())
	for _, c := range all {
		t.Run(c.name(), func(t *testing.T) {
			t.Parallel()
			w.expectJoinAndRestart(t, c)
		})
	}
}

func (w recipeEnv) expectJoinAndRestart(t *testing.T, c candidate) {
	g := NewWithT(t)
	ctx := t.Context()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.runtime.Console(c.vmid))
		}
	})
	node := &corev1.Node{}
	ready := func(g Gomega) {
		g.Expect(w.plane.Client.Get(ctx, client.ObjectKey{Name: c.claim.Name}, node)).To(Succeed())
		g.Expect(harness.NodeReady(node)).To(BeTrue())
	}
	g.Eventually(ready, 3*time.Minute, 100*time.Millisecond).Should(Succeed())
	g.Expect(node.Spec.ProviderID).To(Equal(c.providerID()))
	g.Expect(node.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "t1.2VCPU-6GB"))
	g.Expect(node.Labels).To(HaveKeyWithValue("karpenter.sh/nodepool", "default"))
	g.Expect(node.Spec.Taints).To(ContainElements(
		corev1.Taint{Key: "karpenter.sh/unregistered", Effect: corev1.TaintEffectNoExecute},
		corev1.Taint{Key: "dedicated", Value: "gpu", Effect: corev1.TaintEffectNoSchedule}))
	g.Expect(node.Status.NodeInfo.SystemUUID).To(Equal(string(c.claim.UID)))
	g.Expect(node.Status.Capacity.Pods().Value()).To(BeEquivalentTo(64))
	g.Expect(node.Status.Allocatable.Cpu().MilliValue()).To(BeEquivalentTo(1890), "reserved CPU is not allocatable")
	address := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: c.address}
	g.Expect(node.Status.Addresses).To(ContainElement(address))
	g.Expect(w.requests(t, c)).To(HaveLen(1))

	// The VM restarts without token and drive and keeps its identity.
	g.Expect(w.tokens.Revoke(ctx, c.claim.UID)).To(Succeed())
	firstBoot, uid := node.Status.NodeInfo.BootID, node.UID
	vm := fmt.Sprintf("/nodes/pve1/qemu/%d", c.vmid)
	g.Expect(w.api.Call(ctx, http.MethodPut, vm+"/config", url.Values{"ide2": {"none,media=cdrom"}}, nil)).To(Succeed())
	g.Expect(w.api.Run(ctx, http.MethodPost, vm+"/status/reboot", url.Values{"timeout": {"1200"}})).To(Succeed())
	g.Eventually(func(g Gomega) {
		ready(g)
		g.Expect(node.Status.NodeInfo.BootID).NotTo(Equal(firstBoot))
	}, 3*time.Minute, 100*time.Millisecond).Should(Succeed())
	g.Expect(node.UID).To(Equal(uid))
	g.Expect(node.Status.Addresses).To(ContainElement(address), "the address is kept without the drive")
	g.Expect(w.requests(t, c)).To(HaveLen(1), "no second certificate was requested")
}

// requests returns the certificate requests that were made with the candidate's token.
func (w recipeEnv) requests(t *testing.T, c candidate) []certificatesv1.CertificateSigningRequest {
	t.Helper()
	g := NewWithT(t)
	requests := &certificatesv1.CertificateSigningRequestList{}
	g.Expect(w.plane.Client.List(t.Context(), requests)).To(Succeed())
	var out []certificatesv1.CertificateSigningRequest
	for _, request := range requests.Items {
		if request.Spec.Username == "system:bootstrap:"+c.token.ID {
			g.Expect(request.Spec.Groups).To(ContainElement(bootdata.TokenGroup))
			out = append(out, request)
		}
	}
	return out
}
