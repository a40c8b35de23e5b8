"""The model of a chain: bodies, joints, placements, masses."""

from torsor.model.batch import ModelBatch
from torsor.model.builder import Builder
from torsor.model.joints import JOINTS, Joint, joint_code
from torsor.model.model import Model
from torsor.model.names import Frame

__all__ = ["JOINTS", "Builder", "Frame", "Joint", "Model", "ModelBatch", "joint_code"]
