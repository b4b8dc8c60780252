// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// NewInstalledController returns a controller that runs as its Deployment would run it: with
// the same arguments, environment, mounted Secret, and permissions of the ServiceAccount. Only
// the ports differ, because all controllers share one machine.
func NewInstalledController(ctx context.Context, plane *Plane, name client.ObjectKey, o ControllerOptions) (*Controller, error) {
	deployment := &appsv1.Deployment{}
	if err := plane.Client.Get(ctx, name, deployment); err != nil {
		return nil, fmt.Errorf("reading Deployment: %w", err)
	}
	return newPodController(ctx, plane, name.Namespace, deployment.Spec.Template.Spec, o)
}

// NewPodController returns a controller that runs as the container of a pod of its Deployment.
// Its host name is the pod's.
func NewPodController(ctx context.Context, plane *Plane, pod *corev1.Pod, o ControllerOptions) (*Controller, error) {
	o.Hostname = pod.Name
	return newPodController(ctx, plane, pod.Namespace, pod.Spec, o)
}

func newPodController(ctx context.Context, plane *Plane, namespace string, pod corev1.PodSpec, o ControllerOptions) (*Controller, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating controller directory: %w", err)
	}
	ports, err := FreePorts(2)
	if err != nil {
		return nil, err
	}
	c := &Controller{options: o, log: filepath.Join(o.Dir, "controller.log"), ports: ports}
	if c.options.Kubeconfig, err = plane.writeKubeconfig(ctx, o.Dir, client.ObjectKey{Namespace: namespace, Name: pod.ServiceAccountName}); err != nil {
		return nil, err
	}
	if err := c.mount(ctx, plane.Client, namespace, pod.Volumes); err != nil {
		return nil, err
	}
	c.override = &commandLine{env: environment(namespace, pod.Containers[0].Env)}
	for _, arg := range pod.Containers[0].Args {
		flag, _, _ := strings.Cut(arg, "=")
		switch flag {
		case "--cloud-config":
			c.override.args = append(c.override.args, flag+"="+c.CloudConfig())
		case "--metrics-port", "--health-probe-port": // set by the harness
		default:
			c.override.args = append(c.override.args, arg)
		}
	}
	return c, nil
}

// commandLine holds arguments and environment; the harness only adds ports.
type commandLine struct{ args, env []string }

// writeKubeconfig writes a kubeconfig for a ServiceAccount and returns its path.
func (p *Plane) writeKubeconfig(ctx context.Context, dir string, account client.ObjectKey) (string, error) {
	object := &corev1.ServiceAccount{}
	if err := p.Client.Get(ctx, account, object); err != nil {
		return "", fmt.Errorf("reading ServiceAccount: %w", err)
	}
	// Longer than any test, because the kubeconfig is not renewed.
	seconds := int64(24 * time.Hour / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	if err := p.Client.SubResource("token").Create(ctx, object, request); err != nil {
		return "", fmt.Errorf("requesting token for ServiceAccount: %w", err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["plane"] = &clientcmdapi.Cluster{Server: p.Config.Host, CertificateAuthorityData: p.Config.CAData}
	config.AuthInfos["account"] = &clientcmdapi.AuthInfo{Token: request.Status.Token}
	config.Contexts["default"] = &clientcmdapi.Context{Cluster: "plane", AuthInfo: "account"}
	config.CurrentContext = "default"
	file := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return "", fmt.Errorf("writing kubeconfig: %w", err)
	}
	return file, nil
}

// mount writes the mounted Secret's cloud config to the controller's path. The controllers of other
// providers have none.
func (c *Controller) mount(ctx context.Context, kube client.Client, namespace string, volumes []corev1.Volume) error {
	for _, volume := range volumes {
		if volume.Secret == nil || len(volume.Secret.Items) != 1 {
			continue
		}
		secret := &corev1.Secret{}
		if err := kube.Get(ctx, client.ObjectKey{Namespace: namespace, Name: volume.Secret.SecretName}, secret); err != nil {
			return fmt.Errorf("reading Secret of volume %s: %w", volume.Name, err)
		}
		return os.WriteFile(c.CloudConfig(), secret.Data[volume.Secret.Items[0].Key], 0o600)
	}
	return nil
}

func environment(namespace string, variables []corev1.EnvVar) []string {
	var env []string
	for _, variable := range variables {
		value := variable.Value
		if from := variable.ValueFrom; from != nil {
			if from.FieldRef == nil || from.FieldRef.FieldPath != "metadata.namespace" {
				continue // container limits do not apply here
			}
			value = namespace
		}
		env = append(env, variable.Name+"="+value)
	}
	return env
}
