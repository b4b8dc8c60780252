// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/maintenance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// Without a local file, the settings of the controller in the cluster apply.
func TestHostsFromCluster(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newEnv(t, testenv.Hosts(2))
		const useFile = "; to use a local file, set --cloud-config or --values"
		w.Expect(errorOf(runIn(w, "hosts"))).To(MatchError("no Deployment has a container with the flag --cloud-config: is the controller installed?" + useFile))

		createController(w, "karpenter")
		w.Create(deploymentOf(w, "csi", corev1.PodSpec{Containers: []corev1.Container{{
			Name: "controller", Image: "example.com/csi", Args: []string{"-v=5", "--csi-address=unix:///csi/csi.sock", "--cloud-config=/etc/proxmox/config.yaml"},
		}}}))
		w.Expect(runIn(w, "hosts")).To(Equal(""+
			"REGION     HOST   CPUS   FREE CPUS   MEMORY     FREE MEMORY   UNUSABLE BECAUSE\n"+
			"region-1   pve1   32     30          63.0 GiB   59.0 GiB      \n"+
			"region-1   pve2   32     30          63.0 GiB   59.0 GiB      \n"), "the CSI driver has the flag too")
		w.Expect(runIn(w, "hosts", "-o", "yaml")).To(HavePrefix(
			"- cpus: 32\n  freeCPUs: 30\n  freeMemoryBytes: 63350767616\n  host: pve1\n  memoryBytes: 67645734912\n  region: region-1\n"))
		w.Expect(errorOf(runIn(w, "hosts", "--output", "wide"))).To(MatchError(`--output is "wide": want json or yaml`))

		createController(w, "other")
		w.Expect(errorOf(runIn(w, "hosts"))).To(MatchError("several Deployments have a container with the flag --cloud-config: " +
			"shop/karpenter, shop/other; select one with --controller" + useFile))
		w.Expect(errorOf(runIn(w, "hosts", "--controller", "shop/karpenter"))).NotTo(HaveOccurred())
		w.Expect(errorOf(runIn(w, "hosts", "--controller", "absent"))).To(MatchError(
			`--controller is "absent": there is no such Deployment with a container that has the flag --cloud-config` + useFile))
		w.Expect(w.Kube.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: "other"}})).To(Succeed())
		w.Expect(errorOf(runIn(w, "hosts", "--controller", "shop/other"))).To(MatchError("reading the controller's cloud config /etc/proxmox/clusters.yaml: " +
			`reading Secret other of Deployment shop/other: secrets "other" not found` + useFile))
	})
}

// Hosts in maintenance and launches in progress count as in the controller.
func TestHostsMaintenanceAndReservations(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newEnv(t, testenv.Hosts(2))
		createController(w, "karpenter")
		intent := instance.Intent{Region: testenv.Region, Host: "pve1", VMID: 20099, InstanceType: "t1.4VCPU-8GB", Cores: 4, MemoryMiB: 8 << 10}
		class := w.Class()
		claim := w.Claim("a", class)
		w.SetPlanned(claim, class, intent)
		w.Create(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: maintenance.ConfigMapName},
			Data:       map[string]string{observed.HostName{Region: testenv.Region, Host: "pve2"}.Key(): "new disk"},
		})
		w.Expect(runIn(w, "hosts")).To(MatchRegexp(`pve1 +32 +26 +63.0 GiB +51.0 GiB +\n.*pve2 +32 +30 +63.0 GiB +59.0 GiB +.*maintenance`))
	})
}

func TestInvalidController(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"flag": {[]string{"--proxmox-clone-slots=0"},
			`reading the controller's flags and environment: parsing flags, invalid value "0" for flag -proxmox-clone-slots: `},
		"missing_file": {[]string{"--instance-types-file", "/types.json"},
			"reading the instance types /types.json: /types.json is in no Secret or ConfigMap that Deployment "},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			w := newEnv(t)
			createController(w, "karpenter", test.args...)
			w.Expect(errorOf(runIn(w, "hosts"))).To(MatchError(HavePrefix(test.want)))
		})
	}
}

// The drive of a VM that still exists is listed too: the command that deletes the VM does not
// delete it.
func TestOrphans(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newEnv(t)
		createController(w, "karpenter")
		w.Expect(runIn(w, "orphans")).To(Equal("no orphans found\n"))
		fault, err := w.Sim.AddFault(pvesim.Fault{Method: "GET", Path: "/nodes/*/storage/*/content", Status: 500, Message: "timed out"})
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(errorOf(runIn(w, "orphans"))).To(MatchError(And(ContainSubstring("listing boot drives"), ContainSubstring("timed out"))))
		w.Sim.RemoveFault(fault)
		claim := w.Launched("a", w.Class())
		w.Expect(w.Kube.Delete(t.Context(), claim)).To(Succeed())
		w.Clock.Advance(time.Minute) // Proxmox lists the name of a new VM late

		vmid := w.Intent(claim).VMID
		w.Expect(runIn(w, "orphans")).To(MatchRegexp(strings.Join([]string{
			"^KIND +NAME +WHERE +COMMAND TO DELETE IT",
			`vm +%[1]d \(a\) +region-1/pve1 +qm stop %[1]d && qm destroy %[1]d --purge`,
			`boot-drive +local:iso/karpenter-[0-9a-f]+-%[2]s.iso +region-1/pve1 +pvesm free local:iso/karpenter-[0-9a-f]+-%[2]s.iso`,
			"join-token +of a +kubernetes +kubectl -n kube-system delete secrets -l karpenter.proxmox.sinextra.dev/nodeclaim-uid=%[2]s\n$",
		}, "\n"), vmid, claim.UID))
		w.Expect(runIn(w, "orphans", "-o", "json")).To(HavePrefix(
			"[\n  {\n    \"kind\": \"vm\",\n    \"name\": \"%d (a)\",\n    \"where\": \"region-1/pve1\",\n    \"command\": ", vmid))
	})
}

// TestAPIServer uses a real API server: its version, and its selectors.
func TestAPIServer(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t, testenv.NeverPolled())
	plugin := "plugin:     " + operator.Version() + "\n"
	w.Expect(run(t, "version", "--client")).To(Equal(plugin))
	config := clusterOf(w).kubeconfig
	w.Expect(run(t, "version", "--kubeconfig", config, "--controller", "absent")).To(MatchRegexp(
		"^%scontroller: not found: --controller is \"absent\": .*\nkubernetes: v1\\..*\n$", regexp.QuoteMeta(plugin)))
	createController(w, "karpenter")
	controller := fmt.Sprintf("example.com/karpenter:v1.2.3 (Deployment %s/karpenter)", w.Name)
	w.Expect(runIn(w, "version")).To(HavePrefix(plugin + "controller: " + controller + "\nkubernetes: v1."))
	w.Expect(runIn(w, "version", "-o", "json")).To(ContainSubstring(`"controller": "` + controller + `"`))
	w.Expect(errorOf(run(t, "version", "--kubeconfig", "/absent"))).To(MatchError(HaveSuffix("; for the version of the plugin only, use --client")))

	// The selectors of events that other tests use with a fake API.
	claim := w.Claim("a", w.NewClass())
	createEvent(w, claim, noon(1), corev1.EventTypeWarning, "NodeNotJoined", "no Node joined")
	w.Expect(runIn(w, "explain", "nodeclaim", claim.Name)).To(ContainSubstring("12:01:00 UTC NodeNotJoined: no Node joined\n"))
	createEvent(w, claim, noon(2), corev1.EventTypeNormal, "DisruptionTerminating", "Disrupting NodeClaim: Drifted")
	w.Expect(w.Kube.Delete(t.Context(), claim)).To(Succeed())
	w.Expect(runIn(w, "explain", "nodeclaim", claim.Name)).To(ContainSubstring(" was deleted: Disrupting NodeClaim: Drifted"))
}

func TestCompletion(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newEnv(t)
		class := w.Class(func(c *v1alpha1.ProxmoxNodeClass) { c.Name = "class" })
		w.Pool(class)
		w.Claim("claim", class)
		for want, args := range map[string][]string{
			"nodepool/pool\n":                   {"explain", "nodepool/"},
			"nodeclaim/claim\n":                 {"explain", "nodeclaim/c"},
			"region-1/pve1\n":                   {"maintenance", "start", "re"},
			"region-1/pve1\n:4":                 {"fence", ""},
			"class\n":                           {"render", "cl"},
			"json\nyaml\n:4\n":                  {"explain", "pod/a", "-o", ""},
			"version\tShow the versions":        {"vers"},
			":4\n":                              {"explain", "pod/a", ""},
			"bash\tGenerate the autocompletion": {"completion", "ba"},
		} {
			w.Expect(runIn(w, append([]string{"__complete"}, args...)...)).To(HavePrefix(want), strings.Join(args, " "))
		}
		w.Expect(completionArgs([]string{"/usr/bin/kubectl_complete-proxmox", "explain", ""})).To(Equal([]string{"__complete", "explain", ""}))
		w.Expect(completionArgs([]string{"kubectl-proxmox", "explain"})).To(Equal([]string{"explain"}))
	})
}
