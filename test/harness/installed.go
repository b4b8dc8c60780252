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

// Installed gives the controller what its Deployment would give it: arguments,
// environment, the mounted Secret, and the ServiceAccount with its rights. Only
// the ports are others, since all controllers share one machine here.
func Installed(ctx context.Context, plane *Plane, name client.ObjectKey, o ControllerOptions) (*Controller, error) {
	deployment := &appsv1.Deployment{}
	if err := plane.Client.Get(ctx, name, deployment); err != nil {
		return nil, fmt.Errorf("reading the Deployment, %w", err)
	}
	pod := deployment.Spec.Template.Spec
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the controller's directory, %w", err)
	}
	c := &Controller{options: o, log: filepath.Join(o.Dir, "controller.log")}
	var err error
	if c.options.Kubeconfig, err = plane.actAs(ctx, o.Dir, client.ObjectKey{Namespace: name.Namespace, Name: pod.ServiceAccountName}); err != nil {
		return nil, err
	}
	if err := c.mount(ctx, plane.Client, name.Namespace, pod.Volumes); err != nil {
		return nil, err
	}
	c.exact = &exact{env: environment(name.Namespace, pod.Containers[0].Env)}
	for _, arg := range pod.Containers[0].Args {
		flag, _, _ := strings.Cut(arg, "=")
		switch flag {
		case "--cloud-config":
			c.exact.args = append(c.exact.args, flag+"="+c.CloudConfig())
		case "--metrics-port", "--health-probe-port": // given by the harness
		default:
			c.exact.args = append(c.exact.args, arg)
		}
	}
	return c, nil
}

// exact are arguments and environment to which the harness adds ports only.
type exact struct{ args, env []string }

// actAs writes a kubeconfig of a ServiceAccount.
func (p *Plane) actAs(ctx context.Context, dir string, account client.ObjectKey) (string, error) {
	object := &corev1.ServiceAccount{}
	if err := p.Client.Get(ctx, account, object); err != nil {
		return "", fmt.Errorf("reading the ServiceAccount, %w", err)
	}
	seconds := int64(time.Hour / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	if err := p.Client.SubResource("token").Create(ctx, object, request); err != nil {
		return "", fmt.Errorf("asking for a token of the ServiceAccount, %w", err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["plane"] = &clientcmdapi.Cluster{Server: p.Config.Host, CertificateAuthorityData: p.Config.CAData}
	config.AuthInfos["account"] = &clientcmdapi.AuthInfo{Token: request.Status.Token}
	config.Contexts["default"] = &clientcmdapi.Context{Cluster: "plane", AuthInfo: "account"}
	config.CurrentContext = "default"
	file := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return "", fmt.Errorf("writing the kubeconfig, %w", err)
	}
	return file, nil
}

// mount writes the Secret with the Proxmox clusters where the controller looks.
func (c *Controller) mount(ctx context.Context, kube client.Client, namespace string, volumes []corev1.Volume) error {
	for _, volume := range volumes {
		if volume.Secret == nil || len(volume.Secret.Items) != 1 {
			continue
		}
		secret := &corev1.Secret{}
		if err := kube.Get(ctx, client.ObjectKey{Namespace: namespace, Name: volume.Secret.SecretName}, secret); err != nil {
			return fmt.Errorf("reading the Secret of volume %s, %w", volume.Name, err)
		}
		return os.WriteFile(c.CloudConfig(), secret.Data[volume.Secret.Items[0].Key], 0o600)
	}
	return fmt.Errorf("the Deployment mounts no Secret with the Proxmox clusters")
}

func environment(namespace string, variables []corev1.EnvVar) []string {
	var env []string
	for _, variable := range variables {
		value := variable.Value
		if from := variable.ValueFrom; from != nil {
			if from.FieldRef == nil || from.FieldRef.FieldPath != "metadata.namespace" {
				continue // the limits of a container, which there is none of here
			}
			value = namespace
		}
		env = append(env, variable.Name+"="+value)
	}
	return env
}
