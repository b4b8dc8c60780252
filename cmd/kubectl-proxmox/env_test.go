// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

// newEnv returns an Env with a fake Kubernetes API. Its namespace is shop: that of the pods, and the system namespace of the
// controller. The namespace kube-system identifies the cluster.
func newEnv(t *testing.T, options ...testenv.Option) *testenv.Env {
	t.Helper()
	w := testenv.New(t, append(options, testenv.NoPolling())...)
	w.Name = "shop"
	for _, o := range testenv.BootObjects(w.Name) {
		w.Create(o)
	}
	w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: types.UID(w.KubeCluster)}})
	return w
}

// execute runs the plugin and returns its standard output and standard error.
func execute(t testing.TB, cluster *kubeCluster, args ...string) (out, notes string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if cluster.kubeconfig != "" {
		args = append([]string{"--kubeconfig", cluster.kubeconfig}, args...)
	}
	root := newRootFor(cluster)
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetArgs(args)
	err = root.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

// run runs the plugin without a cluster and returns its output.
func run(t testing.TB, args ...string) (string, error) {
	t.Helper()
	out, _, err := execute(t, &kubeCluster{}, args...)
	return out, err
}

// runIn runs the plugin on an Env and returns its output.
func runIn(w *testenv.Env, args ...string) (string, error) {
	w.T.Helper()
	out, _, err := execute(w.T, clusterOf(w), args...)
	return out, err
}

// clusterOf returns the Kubernetes cluster of an Env.
func clusterOf(w *testenv.Env) *kubeCluster {
	w.T.Helper()
	cluster := &kubeCluster{client: w.Kube, proxmox: testenv.ClientOptions(w.Sim)}
	if w.Config == nil {
		cluster.version = "v1.36.3"
		return cluster
	}
	cluster.kubeconfig = filepath.Join(w.T.TempDir(), "kubeconfig")
	w.Expect(harness.WriteKubeconfig(cluster.kubeconfig, w.Config)).To(Succeed())
	return cluster
}

// runJSON runs the plugin on an Env with -o json and returns its decoded output.
func runJSON[T any](w *testenv.Env, args ...string) (decoded T) {
	w.T.Helper()
	out, err := runIn(w, append(args, "-o", "json")...)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(json.Unmarshal([]byte(out), &decoded)).To(Succeed())
	return decoded
}

// errorOf returns the error of a command.
func errorOf(_ string, err error) error { return err }

func write(t testing.TB, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	testenv.Must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// createController creates the Deployment of a controller for the simulator of an Env, with
// the files that it mounts: the cloud config, a certificate authority and host settings.
func createController(w *testenv.Env, name string, args ...string) {
	w.T.Helper()
	meta := metav1.ObjectMeta{Namespace: w.Name, Name: name}
	config := fmt.Sprintf("clusters: [{region: %s, url: %q, ca_file: /etc/ca/ca.pem, token_id: %q, token_secret_file: /etc/proxmox/token}]",
		testenv.Region, w.Sim.URL(), pvesim.DefaultTokenID)
	w.Create(&corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"config.yaml": []byte(config), "secret": []byte(pvesim.DefaultTokenSecret + "\n")}})
	w.Create(&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{
		"ca.pem": string(w.Sim.CAPEM()), "hosts.json": `{"*": {"*": {"cpuratio": 2}}}`,
	}})
	w.Create(deploymentOf(w, name, corev1.PodSpec{
		Containers: []corev1.Container{{
			Name: "controller", Image: "example.com/karpenter:v1.2.3",
			Args: append([]string{"--cloud-config=/etc/proxmox/clusters.yaml", "--log-level=info"}, args...),
			Env: []corev1.EnvVar{
				{Name: "NODE_SETTING_FILE", Value: "/etc/ca/hosts.json"}, {Name: "FEATURE_GATES", Value: "NodeRepair=true"},
				{Name: "SYSTEM_NAMESPACE", Value: w.Name}, {Name: "HTTPS_PROXY", Value: "http://user:confidential@proxy"},
			},
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
	}))
}

// deploymentOf returns a Deployment whose pods have its name as label.
func deploymentOf(w *testenv.Env, name string, pod corev1.PodSpec) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: name}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod},
	}}
}

// noon returns a time some minutes after noon.
func noon(minute int) time.Time { return time.Date(2026, 11, 16, 12, minute, 0, 0, time.UTC) }

// createEvent creates an event of an object.
func createEvent(w *testenv.Env, object client.Object, at time.Time, eventType, reason, message string) {
	w.T.Helper()
	w.Create(&corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "event-", Namespace: cmp.Or(object.GetNamespace(), metav1.NamespaceDefault)},
		InvolvedObject: corev1.ObjectReference{
			Kind: reflect.TypeOf(object).Elem().Name(), Name: object.GetName(), Namespace: object.GetNamespace(), UID: object.GetUID(),
		},
		Source: corev1.EventSource{Component: "karpenter"}, FirstTimestamp: metav1.NewTime(at), LastTimestamp: metav1.NewTime(at),
		Type: eventType, Reason: reason, Message: message,
	})
}

// setNodeReady sets the condition Ready of a Node.
func setNodeReady(w *testenv.Env, node *corev1.Node, ready corev1.ConditionStatus) {
	w.T.Helper()
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	w.Expect(w.Kube.Status().Update(w.T.Context(), node)).To(Succeed())
}

// setPoolStatus makes a NodePool ready, with used resources.
func setPoolStatus(w *testenv.Env, pool *karpv1.NodePool, used corev1.ResourceList) {
	w.T.Helper()
	pool.Status.Resources = used
	setConditions(w, pool, karpv1.ConditionTypeValidationSucceeded, karpv1.ConditionTypeNodeClassReady)
}

// setConditions sets conditions of an object to true, and stores its status.
func setConditions(w *testenv.Env, object status.Object, conditions ...string) {
	w.T.Helper()
	for _, condition := range conditions {
		object.StatusConditions().SetTrue(condition)
	}
	w.Expect(w.Kube.Status().Update(w.T.Context(), object)).To(Succeed())
}
