// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/maintenance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// createController creates the Deployment of a controller for the simulator of an Env, with
// the files that it mounts: the cloud config, a certificate authority and host settings.
func createController(w *testenv.Env, name string, args ...string) {
	w.T.Helper()
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: w.Name, Name: name} }
	config := fmt.Sprintf("clusters: [{region: %s, url: %q, ca_file: /etc/ca/ca.pem, token_id: %q, token_secret_file: /etc/proxmox/token}]",
		testenv.Region, w.Sim.URL(), pvesim.DefaultTokenID)
	w.Create(&corev1.Secret{ObjectMeta: meta(name), Data: map[string][]byte{"config.yaml": []byte(config), "secret": []byte(pvesim.DefaultTokenSecret + "\n")}})
	w.Create(&corev1.ConfigMap{ObjectMeta: meta(name), Data: map[string]string{
		"ca.pem": string(w.Sim.CAPEM()), "hosts.json": `{"*": {"*": {"cpuratio": 2}}}`,
	}})
	labels := map[string]string{"app": name}
	w.Create(&appsv1.Deployment{ObjectMeta: meta(name), Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "controller", Image: "example.com/karpenter:v1.2.3",
				Args: append([]string{"--cloud-config=/etc/proxmox/clusters.yaml", "--log-level=info"}, args...),
				Env:  []corev1.EnvVar{{Name: "NODE_SETTING_FILE", Value: "/etc/ca/hosts.json"}, {Name: "FEATURE_GATES", Value: "NodeRepair=true"}, {Name: "SYSTEM_NAMESPACE", Value: w.Name}, {Name: "HTTPS_PROXY", Value: "http://user:confidential@proxy"}},
				VolumeMounts: []corev1.VolumeMount{
					{Name: "ca", MountPath: "/etc/ca"}, {Name: "cloud-config", MountPath: "/etc/proxmox/"},
				},
			}},
			Volumes: []corev1.Volume{
				{Name: "ca", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: name}}},
				}}}},
				{Name: "cloud-config", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, Items: []corev1.KeyToPath{
					{Key: "config.yaml", Path: "clusters.yaml"}, {Key: "secret", Path: "token"},
				}}}},
			},
		}},
	}})
}

// Without a local file, the settings of the controller in the cluster apply.
func TestHostsFromCluster(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
	_, err := runIn(w, "hosts")
	w.Expect(err).To(MatchError("no Deployment has a container with the flag --cloud-config: is the controller installed?; to use a local file, set --cloud-config or --values"))

	createController(w, "karpenter")
	labels := map[string]string{"app": "csi"}
	w.Create(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: "csi"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "controller", Image: "example.com/csi", Args: []string{"-v=5", "--csi-address=unix:///csi/csi.sock", "--cloud-config=/etc/proxmox/config.yaml"},
		}}}},
	}})
	out, err := runIn(w, "hosts")
	w.Expect(err).NotTo(HaveOccurred(), "the CSI driver has the flag too")
	w.Expect(out).To(Equal("" +
		"REGION     HOST   CPUS   FREE CPUS   MEMORY     FREE MEMORY   UNUSABLE BECAUSE\n" +
		"region-1   pve1   32     30          63.0 GiB   59.0 GiB      \n" +
		"region-1   pve2   32     30          63.0 GiB   59.0 GiB      \n"))
	out, err = runIn(w, "hosts", "-o", "yaml")
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(out).To(HavePrefix("- cpus: 32\n  freeCPUs: 30\n  freeMemoryBytes: 63350767616\n  host: pve1\n  memoryBytes: 67645734912\n  region: region-1\n"))
	_, err = runIn(w, "hosts", "--output", "wide")
	w.Expect(err).To(MatchError(`--output is "wide": want json or yaml`))

	createController(w, "other")
	_, err = runIn(w, "hosts")
	w.Expect(err).To(MatchError(fmt.Sprintf("several Deployments have a container with the flag --cloud-config: %[1]s/karpenter, %[1]s/other; select one with --controller; to use a local file, set --cloud-config or --values", w.Name)))
	_, err = runIn(w, "hosts", "--controller", w.Name+"/karpenter")
	w.Expect(err).NotTo(HaveOccurred())
	_, err = runIn(w, "hosts", "--controller", "absent")
	w.Expect(err).To(MatchError(HavePrefix(`--controller is "absent": there is no such Deployment with a container that has the flag --cloud-config`)))
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: "other"}}
	w.Expect(w.Kube.Delete(t.Context(), secret)).To(Succeed())
	_, err = runIn(w, "hosts", "--controller", w.Name+"/other")
	w.Expect(err).To(MatchError(fmt.Sprintf("reading the controller's cloud config /etc/proxmox/clusters.yaml: reading Secret other of Deployment %s/other: secrets \"other\" not found; to use a local file, set --cloud-config or --values", w.Name)))
}

// Hosts in maintenance and launches in progress count as in the controller.
func TestHostsMaintenanceAndReservations(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
	createController(w, "karpenter")
	claim := w.Claim("a", w.Class())
	intent := instance.Intent{Region: testenv.Region, Host: "pve1", VMID: 20099, InstanceType: "t1.4VCPU-8GB", Cores: 4, MemoryMiB: 8 << 10}
	w.Annotate(claim, map[string]string{v1alpha1.AnnotationLaunchIntent: intent.Encode()})
	w.Create(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: maintenance.ConfigMapName},
		Data:       map[string]string{inventory.HostName{Region: testenv.Region, Host: "pve2"}.Key(): "new disk"},
	})
	out, err := runIn(w, "hosts")
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(out).To(MatchRegexp(`pve1 +32 +26 +63.0 GiB +51.0 GiB +\n.*pve2 +32 +30 +63.0 GiB +59.0 GiB +.*maintenance`))
}

func TestInvalidController(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		`reading the controller's flags and environment: parsing flags, invalid value "0" for flag -proxmox-clone-slots: `: {"--proxmox-clone-slots=0"},
		"reading the controller's instance types: /types.json is in no Secret or ConfigMap that Deployment ":               {"--instance-types-file", "/types.json"},
	} {
		w := testenv.New(t, testenv.NoPolling())
		createController(w, "karpenter", args...)
		_, err := runIn(w, "hosts")
		w.Expect(err).To(MatchError(HavePrefix(want)))
	}
}

// The drive of a VM that still exists is listed too: the command that deletes the VM does not
// delete it.
func TestOrphans(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	createController(w, "karpenter")
	none, err := runIn(w, "orphans")
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(none).To(Equal("no orphans found\n"))
	fault, err := w.Sim.AddFault(pvesim.Fault{Method: "GET", Path: "/nodes/*/storage/*/content", Status: 500, Message: "timed out"})
	w.Expect(err).NotTo(HaveOccurred())
	_, err = runIn(w, "orphans")
	w.Expect(err).To(MatchError(And(ContainSubstring("listing boot drives"), ContainSubstring("timed out"))))
	w.Sim.RemoveFault(fault)
	system := testenv.Reload(w, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}})
	process := w.StartProcess(testenv.KubeCluster(string(system.UID)))
	claim := process.Launched("a", w.Class())
	in := w.Intent(claim)
	w.Expect(w.Kube.Delete(t.Context(), claim)).To(Succeed())

	var lines []string
	w.Eventually(func() []string {
		out, err := runIn(w, "orphans")
		w.Expect(err).NotTo(HaveOccurred())
		lines = strings.Split(strings.TrimSpace(out), "\n")
		return lines
	}).Should(And(HaveLen(4), ContainElement(ContainSubstring("("+claim.Name+")"))), "Proxmox lists a new VM and its name late")
	w.Expect(lines[0]).To(MatchRegexp("^KIND +NAME +WHERE +COMMAND TO DELETE IT$"))
	w.Expect(lines[1]).To(MatchRegexp(`^vm +%[1]d \(%[2]s\) +region-1/pve1 +qm stop %[1]d && qm destroy %[1]d --purge$`, in.VMID, claim.Name))
	w.Expect(lines[2]).To(MatchRegexp(`^boot-drive +local:iso/karpenter-[0-9a-f]+-%[1]s.iso +region-1/pve1 +pvesm free local:iso/karpenter-[0-9a-f]+-%[1]s.iso$`, claim.UID))
	w.Expect(lines[3]).To(MatchRegexp(`^join-token +of %s +kubernetes +kubectl -n kube-system delete secrets -l karpenter.proxmox.sinextra.dev/nodeclaim-uid=%s$`, claim.Name, claim.UID))
	out, err := runIn(w, "orphans", "-o", "json")
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(out).To(HavePrefix(fmt.Sprintf("[\n  {\n    \"kind\": \"vm\",\n    \"name\": \"%d (%s)\",\n    \"where\": \"region-1/pve1\",\n    \"command\": ", in.VMID, claim.Name)))
}

func TestVersion(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	out, err := run(t, "version", "--client")
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(out).To(Equal("plugin:     " + operator.Version() + "\n"))
	out, err = runIn(w, "version")
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(out).To(ContainSubstring("controller: not found: no Deployment has a container with the flag --cloud-config: is the controller installed?\n"))
	createController(w, "karpenter")
	out, err = runIn(w, "version")
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(out).To(MatchRegexp("^plugin:     karpenter-provider-proxmox .*\ncontroller: example.com/karpenter:v1.2.3 \\(Deployment " + w.Name + "/karpenter\\)\nkubernetes: v1\\..*\n$"))
	out, err = runIn(w, "version", "-o", "json")
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(out).To(ContainSubstring(`"controller": "example.com/karpenter:v1.2.3 (Deployment ` + w.Name + `/karpenter)"`))
	_, err = run(t, "version", "--kubeconfig", "/absent")
	w.Expect(err).To(MatchError(HaveSuffix("; for the version of the plugin only, use --client")))
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	pool := w.Pool(class)
	w.Claim("a", class, func(c *karpv1.NodeClaim) { c.Name = w.Named("claim") })
	for want, args := range map[string][]string{
		"nodepool/" + pool.Name:             {"explain", "nodepool/"},
		"nodeclaim/" + w.Named("claim"):     {"explain", "nodeclaim/" + w.Name},
		testenv.Region + "/pve1":            {"maintenance", "start", "re"},
		testenv.Region + "/pve1\n:4":        {"fence", ""},
		class.Name:                          {"render", w.Name},
		"json\nyaml\n:4\n":                  {"explain", "pod/a", "-o", ""},
		"version\tShow the versions":        {"vers"},
		":4\n":                              {"explain", "pod/a", ""},
		"bash\tGenerate the autocompletion": {"completion", "ba"},
	} {
		out, err := runIn(w, append([]string{"__complete"}, args...)...)
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(out).To(HavePrefix(want), strings.Join(args, " "))
	}
	w.Expect(completionArgs([]string{"/usr/bin/kubectl_complete-proxmox", "explain", ""})).To(Equal([]string{"__complete", "explain", ""}))
	w.Expect(completionArgs([]string{"kubectl-proxmox", "explain"})).To(Equal([]string{"explain"}))
}
