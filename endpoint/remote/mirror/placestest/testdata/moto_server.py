"""Serves moto's S3, STS and IAM with a bucket that only a role may read.

python moto_server.py FOLDER: uploads the files of FOLDER to s3://models/org/m, prints a line of JSON with the URL and the keys
of a user who may only assume the role, and serves until its input ends.
"""

import json
import os
import pathlib
import sys
import urllib.request

import boto3
from moto.server import ThreadedMotoServer

REGION = "eu-west-3"


def policy(action, resource):
    return json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": action, "Resource": resource}]})


def main():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    session = boto3.Session(aws_access_key_id="setup", aws_secret_access_key="setup", region_name=REGION)
    s3, iam = session.client("s3", endpoint_url=url), session.client("iam", endpoint_url=url)
    s3.create_bucket(Bucket="models", CreateBucketConfiguration={"LocationConstraint": REGION})
    for path in pathlib.Path(sys.argv[1]).iterdir():
        s3.put_object(Bucket="models", Key="org/m/" + path.name, Body=path.read_bytes())
    trust = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}]}
    role = iam.create_role(RoleName="reader", AssumeRolePolicyDocument=json.dumps(trust))["Role"]["Arn"]
    read = policy(["s3:GetObject", "s3:ListBucket", "s3:GetBucketLocation"], "*")
    iam.put_role_policy(RoleName="reader", PolicyName="read", PolicyDocument=read)
    iam.create_user(UserName="user")
    iam.put_user_policy(UserName="user", PolicyName="assume", PolicyDocument=policy("sts:AssumeRole", "*"))
    key = iam.create_access_key(UserName="user")["AccessKey"]
    reset = urllib.request.Request(url + "/moto-api/reset-auth", data=b"0", headers={"Content-Type": "text/plain"})
    urllib.request.urlopen(reset).close()  # policies apply from here on
    print(json.dumps({"url": url, "role": role, "key": key["AccessKeyId"], "secret": key["SecretAccessKey"]}), flush=True)
    sys.stdin.read()
    server.stop()
    os._exit(0)


if __name__ == "__main__":
    main()
